"""`make test-fresh`: the README's two commands on a new machine, a container of plain Debian 12 with Python 3.11.

    python -m tests.deploy.fresh_machine [--packages "..."] [--keep] [COMMAND ...]       # default: make demo

The container has the committed files, an ordinary user, and this machine's package indexes; folders of wheels
(pip's find-links) are left out, so that torch is what PyPI or TORCH_INDEX serve. Needs a Docker engine.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time

from tests.deploy.images import DOCKER, INDEXES, ROOT, docker, is_there, package_settings

DEBIAN = "debian:bookworm-slim"
PACKAGES = "python3 python3-venv make libnuma1 ca-certificates"
"""What the README asks for."""
HOME = "/home/user"


def ensure_debian() -> None:
    if is_there(DEBIAN):
        return
    with tempfile.NamedTemporaryFile(suffix=".tar") as tar:
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", "bookworm", tar.name]
        subprocess.run(command, check=True)
        docker("import", tar.name, DEBIAN)


def build(packages: str) -> str:
    """An image with Debian's packages and an ordinary user."""
    install = f"apt-get update && apt-get install -y --no-install-recommends {packages}"
    text = f"FROM {DEBIAN}\nRUN {install}\nRUN useradd --create-home --shell /bin/bash user\n"
    docker("build", "--network=host", "-t", "calopd-fresh", "-", text=f"{text}USER user\nWORKDIR {HOME}/calopd\n")
    return "calopd-fresh"


class Machine:
    """A running container."""

    def __init__(self, image: str, conf: str, certificates: str) -> None:
        mounts = [f"{conf}:/etc/pip.conf:ro", f"{certificates}:/run/secrets/ca:ro"]
        volumes = [part for mount in mounts for part in ("--volume", mount)]
        passed = ["--env", f"TORCH_INDEX={os.environ['TORCH_INDEX']}"] if "TORCH_INDEX" in os.environ else []
        # The host's network, because package folders are served on its loopback.
        options = ["--detach", "--init", "--network=host", "--shm-size=1g", *volumes, *passed]
        self.name = docker("run", *options, image, "sleep", "infinity")

    def copy_project(self) -> None:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run([DOCKER, "exec", "-i", self.name, "tar", "-x"], input=archive, check=True)

    def run(self, *command: str) -> float:
        """Run a command, show its output, and return its seconds."""
        start = time.monotonic()
        subprocess.run([DOCKER, "exec", self.name, *command], check=True)
        return time.monotonic() - start

    def read(self, *command: str) -> str:
        return docker("exec", self.name, *command)

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.name)


def demo_faults(machine: Machine) -> list[str]:
    """Reasons why a finished demo did not work."""
    summary = json.loads(machine.read("cat", "runs/demo/summary.json"))
    print(json.dumps(summary, indent=1))
    faults = []
    if summary["tickets_missing"]:
        faults.append(f"{summary['tickets_missing']} tickets are missing")
    if summary["gain_interval_95"][0] <= 0:
        faults.append(f"the student did not improve: {summary['accuracy_before']} -> {summary['accuracy_after']}")
    if not summary["sampler"].startswith("vllm"):
        faults.append(f"sampled by {summary['sampler']}")
    return faults


def report(machine: Machine, figures: dict[str, float]) -> None:
    torch = "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)"
    print("\ntorch:", machine.read(".venv/bin/python", "-c", torch))
    print("disk:", " ".join(machine.read("du", "-sh", ".venv", ".").split()))
    for name, seconds in figures.items():
        print(f"{name}: {seconds:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.fresh_machine")
    parser.add_argument("--packages", default=PACKAGES, help="Debian packages of the machine")
    parser.add_argument("--keep", action="store_true", help="leave the container for inspection")
    parser.add_argument("command", nargs="*", default=["make", "demo"])
    options = parser.parse_args()
    ensure_debian()
    image = build(options.packages)
    with package_settings(*INDEXES) as (conf, certificates):
        machine = Machine(image, conf, certificates)
        try:
            machine.copy_project()
            figures = {"make setup": machine.run("make", "setup")}
            report(machine, figures)
            figures[" ".join(options.command)] = machine.run(*options.command)
            report(machine, figures)
            faults = demo_faults(machine) if options.command == ["make", "demo"] else []
        finally:
            if options.keep:
                print(f"kept: {DOCKER} exec -it {machine.name} bash")
            else:
                machine.remove()
    print("\n".join(f"error: {fault}" for fault in faults) or "works on a fresh machine")
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
