"""Images of the CPU stack, built with the Docker engine of this machine: `python -m tests.deploy.images`.

Where an image cannot be pulled, a stand-in of the same name is made from Debian's packages. This machine's way to
packages (pip settings, certificates, folders of wheels) goes in as build secrets and stays out of the images.
"""

import contextlib
import functools
import http.server
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import yaml

import calopd

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim-bookworm"
ROLES = ("teacher", "rollout", "learner")
DOCKER = os.environ.get("DOCKER", "docker")
STAND_INS = {
    "redis": (
        "redis-server",
        "RUN userdel redis; useradd --uid 999 redis && install -d -o 999 -g 999 /data\nWORKDIR /data\nUSER 999\n",
    ),
    "prom/prometheus": (
        "prometheus",
        "RUN install -d -o 65534 -g 65534 /prometheus\nUSER 65534\nENTRYPOINT [\"/bin/prometheus\"]\n",
    ),
}  # fmt: skip
"""Image -> Debian package, and what makes its image look like the published one."""


def docker(*arguments: str, text: str | None = None, check: bool = True) -> str:
    done = subprocess.run(
        [DOCKER, *arguments], input=text, capture_output=True, text=True, env={**os.environ, "DOCKER_BUILDKIT": "1"}
    )
    if check and done.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def is_there(image: str) -> bool:
    return bool(docker("images", "-q", image)) or not _fails("pull", "-q", image)


def _fails(*arguments: str) -> bool:
    return subprocess.run([DOCKER, *arguments], capture_output=True).returncode != 0


def ensure_base() -> None:
    if is_there(BASE):
        return
    packages = "python3,python3-venv,python3-pip,ca-certificates"
    with tempfile.NamedTemporaryFile(suffix=".tar") as tar:
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "bookworm", tar.name], check=True
        )
        docker("import", tar.name, BASE)


def ensure_stand_ins() -> None:
    """Redis and Prometheus under the names that the compose file gives them."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for service in ("redis", "prometheus"):
        image = services[service]["image"]
        if not is_there(image):
            package, rest = STAND_INS[image.partition(":")[0]]
            install = (
                f"apt-get update && apt-get install -y --no-install-recommends {package} && rm -rf /var/lib/apt/lists/*"
            )
            docker("build", "--network=host", "-t", image, "-", text=f"FROM {BASE}\nRUN {install}\n{rest}")


INDEXES = ("index-url", "extra-index-url")
TAG = "local-cpu"
"""The tag that docker-compose.cpu.yml uses by default."""


def build_roles(revision: str = "unknown") -> None:
    """The three services as `calopd/<role>:<TAG>`, by the script that `make up-cpu` uses; its steps are shown."""
    with package_settings(*INDEXES, "find-links") as (conf, certificates):
        environment = {
            "PIP_CONF": conf, "CA_BUNDLE": certificates, "BUILD_FLAGS": "--network=host --progress=plain",
            "CALOPD_VERSION": calopd.__version__, "REVISION": revision, "DOCKER": DOCKER,
        }  # fmt: skip
        with subprocess.Popen(
            [str(ROOT / "deploy/docker/build.sh"), TAG, BASE],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as build:  # fmt: skip
            assert build.stdout is not None
            said = [line for line in build.stdout if not _show(line)]
        if build.returncode:
            raise RuntimeError(f"deploy/docker/build.sh: exit code {build.returncode}\n{''.join(said)[-4000:]}")


def _show(line: str) -> bool:
    """Print what is being built, and the steps of it that take long."""
    shown = bool(re.match(r"building |#\d+ \[.*\] |#\d+ DONE [1-9]\d*\.", line))
    if shown:
        print(f"  {line.rstrip()}", flush=True)
    return shown


@contextlib.contextmanager
def package_settings(*keys: str) -> Iterator[tuple[str, str]]:
    """Files with this machine's pip settings, for a container that has certificates in /run/secrets/ca, and with these.

    Folders of packages are served to the container over loopback.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found = dict(re.findall(r"^.*\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    certificates = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    with contextlib.ExitStack() as stack:
        lines = ["[global]", "cert = /run/secrets/ca"]
        for key in keys:
            if key in found:
                places = (place.removeprefix("file://") for place in found[key].split())
                urls = (stack.enter_context(_served(place)) if place.startswith("/") else place for place in places)
                lines.append(f"{key} = {' '.join(urls)}")
        conf = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".conf"))
        conf.write("\n".join(lines) + "\n")
        conf.flush()
        # Users other than root read it too.
        Path(conf.name).chmod(0o644)
        yield conf.name, str(certificates)


@contextlib.contextmanager
def _served(folder: str) -> Iterator[str]:
    # From the folder above: an index refers to its files by ../../.
    top = Path(folder).parent
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(top)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{Path(folder).name}/"
    server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def size_mb(image: str) -> float:
    return int(docker("image", "inspect", "-f", "{{.Size}}", image)) / 1e6


if __name__ == "__main__":
    ensure_base()
    ensure_stand_ins()
    build_roles()
    for role in ROLES:
        print(f"calopd/{role}:{TAG} {size_mb(f'calopd/{role}:{TAG}'):.0f} MB")
