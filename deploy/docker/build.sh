#!/bin/sh
# Build the images of the three roles: deploy/docker/build.sh TAG [BASE]
# Read from the environment, then from .env: PIP_CONF, CA_BUNDLE, BUILD_FLAGS, TORCH_INDEX, PIP_EXTRA_INDEX_URL, proxies.
set -eu
tag=$1
base=${2:-}
cd "$(dirname "$0")/../.."

setting() {
  eval "value=\${$1-}"
  # shellcheck disable=SC2154
  [ -n "$value" ] || value=$(sed -n "s/^$1=//p" .env 2>/dev/null | tail -1)
  printf %s "$value"
}

set --
[ -z "$base" ] || set -- "$@" --build-arg "BASE=$base"
# An empty TORCH_INDEX means: only the configured indexes. So it counts if it is there, in the environment or else in .env.
[ -n "${TORCH_INDEX+set}" ] || ! grep -qs '^TORCH_INDEX=' .env || TORCH_INDEX=$(setting TORCH_INDEX)
[ -z "${TORCH_INDEX+set}" ] || set -- "$@" --build-arg "TORCH_INDEX=$TORCH_INDEX"
# Docker leaves proxies out of the image.
for name in PIP_EXTRA_INDEX_URL HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  value=$(setting $name)
  [ -z "$value" ] || set -- "$@" --build-arg "$name=$value"
done
for pair in pip_conf:PIP_CONF ca:CA_BUNDLE; do
  file=$(setting "${pair#*:}")
  [ -n "$file" ] || continue
  [ -r "$file" ] || { echo "error: ${pair#*:}=$file cannot be read: name a file, or leave it empty" >&2; exit 78; }
  set -- "$@" --secret "id=${pair%:*},src=$file"
done
flags=$(setting BUILD_FLAGS)
for role in teacher rollout learner; do
  echo "building calopd/$role:$tag" >&2
  # shellcheck disable=SC2086
  DOCKER_BUILDKIT=1 "${DOCKER:-docker}" build -f deploy/docker/Dockerfile --target "$role" -t "calopd/$role:$tag" \
    --build-arg "VERSION=${CALOPD_VERSION:-unknown}" --build-arg "REVISION=${REVISION:-unknown}" "$@" $flags .
done
