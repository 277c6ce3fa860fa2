#!/bin/sh
# Redis with an append-only file, and one user with access to the run's keys but not to server administration.
set -eu
umask 077
{
  echo "user default off"
  echo "user calopd on >${REDIS_PASSWORD} ~calopd:* resetchannels +@all -@admin -@dangerous +info"
} > /tmp/users.acl
listen="--port 6379"
if [ -n "${REDIS_TLS_DIR:-}" ]; then
  listen="--port 0 --tls-port 6379 --tls-ca-cert-file $REDIS_TLS_DIR/ca.crt
    --tls-cert-file $REDIS_TLS_DIR/tls.crt --tls-key-file $REDIS_TLS_DIR/tls.key"
fi
# shellcheck disable=SC2086
exec redis-server --aclfile /tmp/users.acl --dir /data --bind 0.0.0.0 $listen --protected-mode no \
  --appendonly yes --appendfsync always --save "" --maxmemory-policy noeviction
