#!/bin/sh
# A run on a cluster: deploy/k8s/cluster.sh COMMAND [OVERLAY | FILE]
#   up OVERLAY      install, start, change, upgrade or resume: applies the overlay; may be repeated
#   status          pods, and how far the run is
#   logs            follow the learner
#   stop            stop the run and free its GPUs; up resumes it
#   data FILE       copy a file with problems to /calopd/data, also while the roles wait or run
#   restore FILE    unpack a run directory (tar, gzip) into the claim of the runs, while the run is stopped
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
  # The pods of a Job cannot be changed, and a Job that failed does not start again: both are deleted with their pods, and created again.
  for job in prepare learner; do
    said=$(kubectl apply -k "$overlay" -l "app.kubernetes.io/name=$job" --dry-run=server 2>&1) || case $said in
      *"field is immutable"*) replace "$job" "has changed" ;;
    esac
    if [ "$(kube get job "$job" --ignore-not-found -o 'jsonpath={.status.conditions[?(@.type=="Failed")].status}')" = True ]; then
      replace "$job" "has failed"
    fi
  done
  kubectl apply -k "$overlay"
  # An autoscaler does not act on a Deployment that was stopped.
  if [ "$(kube get deployment teacher -o 'jsonpath={.spec.replicas}')" = 0 ]; then
    kube scale deployment teacher --replicas=1
  fi
}

replace() {
  echo "job $1 $2: replacing it"
  kube delete job "$1" --cascade=foreground --wait --ignore-not-found
}

running() { kube get pods -l "$learner" --field-selector=status.phase=Running --sort-by=.metadata.name -o name | head -1; }

status() {
  kube get pods,jobs,hpa
  pod=$(running)
  [ -z "$pod" ] || kube exec "$pod" -c learner -- python -c '
import urllib.request as r
try:
    print(r.urlopen("http://127.0.0.1:8080/status").read().decode())
except OSError:
    print("the learner has no status page yet")'
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

of_job() { kube get job "$1" -o "jsonpath={.spec.$2}"; }

restore() {
  [ -r "$1" ] || fail "restore needs a file that can be read, made by tar -czf, got '$1'"
  [ "$(of_job learner suspend)" = true ] || fail "the learner is not stopped: deploy/k8s/cluster.sh stop"
  kube wait --for=delete pod -l "$learner" --field-selector=status.phase=Running --timeout=3m
  create_files learner runs /runs
  unpack /runs < "$1"
  echo "to resume: deploy/k8s/cluster.sh up OVERLAY"
}

data() {
  if [ ! -f "$1" ] || [ ! -r "$1" ]; then fail "data needs a file that can be read, got '$1'"; fi
  [ -n "$(kube get pvc data --ignore-not-found -o name)" ] || fail "there is no claim for data: deploy/k8s/cluster.sh up OVERLAY with GPUs"
  # Beside the roles, like the download. While the run is stopped there are none: then where the learner could run.
  job=prepare
  [ "$(of_job learner suspend)" != true ] || job=learner
  create_files "$job" data /calopd/data
  tar -C "$(dirname "$1")" -chzf - "$(basename "$1")" | unpack /calopd/data
  echo "a learner that ended without it starts again with: deploy/k8s/cluster.sh up OVERLAY"
}

# create_files JOB CLAIM PATH: a temporary pod that may write to a claim, on a node where the pods of the Job could run.
create_files() {
  remove_files
  trap remove_files EXIT
  trap 'exit 130' INT TERM
  kube apply -f - <<END
apiVersion: v1
kind: Pod
metadata:
  name: files
  labels:
    app.kubernetes.io/name: files
    app.kubernetes.io/part-of: calopd
    calopd.io/node: "$(of_job "$1" 'template.metadata.labels.calopd\.io/node')"
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 86400
  terminationGracePeriodSeconds: 0
  serviceAccountName: calopd
  automountServiceAccountToken: false
  enableServiceLinks: false
  nodeSelector: $(of_job "$1" template.spec.nodeSelector | grep . || echo '{}')
  tolerations: $(of_job "$1" template.spec.tolerations | grep . || echo '[]')
  affinity: $(of_job "$1" template.spec.affinity | grep . || echo '{}')
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: files
      image: $(of_job "$1" 'template.spec.containers[0].image')
      command: [sleep, infinity]
      resources: $(of_job "$1" 'template.spec.containers[0].resources')
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: files, mountPath: $3}
  volumes:
    - name: files
      persistentVolumeClaim: {claimName: $2}
END
  kube wait --for=condition=Ready pod/files --timeout=10m
}

# unpack PATH: what is there under the same names is replaced, and only after everything has arrived.
unpack() {
  kube exec -i files -- sh -ec 'cd "$0"; rm -rf .new; mkdir .new; tar -C .new -xzf -
    for each in .new/*; do rm -rf "${each#.new/}"; mv "$each" .; echo "wrote $0/${each#.new/}"; done
    rmdir .new' "$1"
}

remove_files() { kube delete pod files --ignore-not-found; }

case ${1-} in
  up) up "${2-}" ;;
  status | logs | stop) "$1" ;;
  data | restore) "$1" "${2-}" ;;
  secrets) secrets ;;
  *) fail "expected up OVERLAY, status, logs, stop, data FILE or restore FILE, got '${1-}'" ;;
esac
