#!/bin/sh
# Redis with an append-only file, and one user who may touch the run's keys and nothing of the server itself.
set -eu
umask 077
{
  echo "user default off"
  echo "user calopd on >${REDIS_PASSWORD} ~calopd:* resetchannels +@all -@admin -@dangerous"
} > /tmp/users.acl
exec redis-server --aclfile /tmp/users.acl --dir /data --bind 0.0.0.0 --port 6379 --protected-mode no \
  --appendonly yes --appendfsync always --save "" --maxmemory-policy noeviction
