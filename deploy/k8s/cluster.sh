#!/bin/sh
# A run on a cluster: deploy/k8s/cluster.sh COMMAND [OVERLAY]
#   up OVERLAY      install, start, change, upgrade or resume: applies the overlay; may be repeated
#   status          pods, and how far the run is
#   logs            follow the learner
#   stop            stop the run and free its GPUs; up resumes it
# OVERLAY is a folder, or the name of one in deploy/k8s/overlays.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
namespace=calopd
learner=app.kubernetes.io/name=learner

fail() { echo "error: $*" >&2; exit 78; }
kube() { kubectl -n "$namespace" "$@"; }

secrets() {
  [ ! -e "$here/secrets/secrets.env" ] || return 0
  (
    umask 077
    for name in CALOPD_TOKEN REDIS_PASSWORD; do
      echo "s/^$name=\$/$name=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')/"
    done | sed -f - "$here/secrets/secrets.env.example" > "$here/secrets/secrets.env"
  )
  echo "created deploy/k8s/secrets/secrets.env with new secrets"
}

up() {
  [ -n "$1" ] || fail "name an overlay: $(cd "$here/overlays" && echo *)"
  overlay=$1
  [ -d "$overlay" ] || overlay=$here/overlays/$1
  [ -d "$overlay" ] || fail "there is no overlay $1: expected a folder, or one of $(cd "$here/overlays" && echo *)"
  secrets
  # The pods of a Job cannot be changed: one that differs is deleted with its pods, and created again.
  for job in prepare learner; do
    said=$(kubectl apply -k "$overlay" -l "app.kubernetes.io/name=$job" --dry-run=server 2>&1) || case $said in
      *"field is immutable"*)
        echo "job $job has changed: replacing it"
        kube delete job "$job" --cascade=foreground --wait --ignore-not-found
        ;;
    esac
  done
  kubectl apply -k "$overlay"
  # An autoscaler does not act on a Deployment that was stopped.
  if [ "$(kube get deployment teacher -o 'jsonpath={.spec.replicas}')" = 0 ]; then
    kube scale deployment teacher --replicas=1
  fi
}

running() { kube get pods -l "$learner" --field-selector=status.phase=Running --sort-by=.metadata.name -o name | head -1; }

status() {
  kube get pods,jobs,hpa
  pod=$(running)
  [ -z "$pod" ] || kube exec "$pod" -c learner -- python -c \
    'import urllib.request as r; print(r.urlopen("http://127.0.0.1:8080/status").read().decode())'
}

logs() {
  pod=$(running)
  [ -n "$pod" ] || pod=$(kube get pods -l "$learner" --sort-by=.metadata.creationTimestamp -o name | tail -1)
  [ -n "$pod" ] || fail "the learner has no pod yet: deploy/k8s/cluster.sh status"
  kube logs -f "$pod" -c learner
}

stop() {
  kube patch job learner --type=merge -p '{"spec": {"suspend": true}}'
  kube scale deployment teacher rollout --replicas=0
  echo "stopped; claims and Redis stay. To resume: deploy/k8s/cluster.sh up OVERLAY"
}

case ${1-} in
  up) up "${2-}" ;;
  status | logs | stop) "$1" ;;
  secrets) secrets ;;
  *) fail "expected up OVERLAY, status, logs or stop, got '${1-}'" ;;
esac
