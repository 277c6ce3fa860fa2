"""`make setup` with real environments, real pip and tiny wheels: the build of torch that it takes, what it refuses."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from requirements import install
from requirements.pins import Pin
from services.import_check import packages_of
from tests.services.processes import ROOT

CLOSED = "http://127.0.0.1:9"
"""Nobody listens there, and the connection is refused at once."""


def wheel(folder: Path, name: str, version: str, text: str = "") -> Pin:
    """A wheel with one module, and its pin."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return Pin(name, version, f"{name}=={version} --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> install.Environment:
    made = install.Environment(tmp_path_factory.mktemp("environment") / "venv")
    made.create("cpu")
    return made


@pytest.fixture
def packages(environment: install.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip can see, and an environment without torch."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"CONFIG_FILE": os.devnull, "INDEX_URL": f"{CLOSED}/own", "FIND_LINKS": str(tmp_path / "packages")}
    for name, value in {**settings, "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(install, "TORCH_INDEX", f"{CLOSED}/cpu")
    command = [environment.python, "-m", "pip", "uninstall", "-q", "-y", "torch", "libcuda"]
    subprocess.run(command, check=True, capture_output=True)
    return tmp_path / "packages"


def test_the_cpu_build_is_taken_where_it_is_found(environment: install.Environment, packages: Path) -> None:
    """Also if no index can be reached."""
    wheel(packages, "torch", "2.13.0")
    cpu_build = wheel(packages, "torch", "2.13.0+cpu")
    install.install_torch(environment, cpu_build)
    assert environment.versions()["torch"] == "2.13.0+cpu"


def test_otherwise_the_cuda_build_comes_with_its_libraries(
    environment: install.Environment,
    packages: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cpu_build = wheel(packages.parent / "elsewhere", "torch", "2.13.0+cpu")
    cuda = {pin.name: pin for pin in (wheel(packages, "torch", "2.13.0"), wheel(packages, "libcuda", "13.0"))}
    monkeypatch.setattr(install, "read", {"torch-cuda.lock": cuda}.__getitem__)
    install.install_torch(environment, cpu_build)
    found = environment.versions()
    assert (found["torch"], found["libcuda"]) == ("2.13.0", "13.0")
    assert "Installing the CUDA build" in capsys.readouterr().out


def test_a_file_with_another_hash_is_refused(environment: install.Environment, packages: Path) -> None:
    pin = wheel(packages, "torch", "2.13.0+cpu")
    wheel(packages, "torch", "2.13.0+cpu", text="changed = True")
    with pytest.raises(install.InstallError, match="DO NOT MATCH THE HASHES"):
        install.install_torch(environment, pin)
    assert "torch" not in environment.versions()


def test_a_users_indexes_are_asked_beside_that_of_torch(
    environment: install.Environment, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{CLOSED}/extra")
    with pytest.raises(install.InstallError) as failed:
        environment.pip_install("-vv", "nothing-of-this-name", *install.index_options())
    asked = set(re.findall(rf"{CLOSED}/\w+", str(failed.value)))
    assert asked == {f"{CLOSED}/own", f"{CLOSED}/extra", f"{CLOSED}/cpu"}


def test_an_environment_of_the_other_kind_is_made_again(tmp_path: Path) -> None:
    made = install.Environment(tmp_path / "venv")
    made.folder.mkdir()
    (made.folder / "left-over").touch()
    (made.folder / ".ready").write_text("cpu\n")
    made.create("image")
    assert not (made.folder / "left-over").exists()
    assert Path(made.python).exists()


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (None, "nvidia-smi was not found"),
        ("", "no output"),
        ("Failed to initialize NVML: Driver/library version mismatch", "Failed to initialize NVML"),
        ("570.172.08\n570.172.08\n", "the NVIDIA driver is 570.172.08"),
    ],
)
def test_a_host_without_a_fitting_driver_is_refused(versions: str | None, said: str) -> None:
    with pytest.raises(install.InstallError, match=re.escape(said)) as refused:
        install.check_driver(versions)
    assert "580 series" in str(refused.value)
    assert "make setup-gpu FORCE=1" in str(refused.value)


def test_a_fitting_driver_is_accepted() -> None:
    install.check_driver("580.95.05\n580.95.05\n")
    install.check_driver("610.43.02\n")


def test_a_machine_without_a_library_of_vllm_is_refused() -> None:
    install.check_library("libc.so.6")
    with pytest.raises(install.InstallError, match=r"libnone\.so\.1: cannot open.*apt-get install libnuma1"):
        install.check_library("libnone.so.1")


@pytest.mark.parametrize(("kind", "version"), [("cpu", (3, 10)), ("cpu", (3, 12)), ("gpu", (3, 13))])
def test_another_python_is_refused(kind: str, version: tuple[int, int]) -> None:
    with pytest.raises(install.InstallError, match=r"Python 3\.11.* is needed"):
        install.check_python(kind, version)
    install.check_python(kind, (3, 11))


def test_the_import_check_names_what_does_not_fit(tmp_path: Path) -> None:
    """A grpcio that is older than the stubs."""
    (tmp_path / "sitecustomize.py").write_text("import grpc\ngrpc.__version__ = '1.70.0'\n")
    code = (
        "from services import import_check as c\n"
        "c.own_modules = lambda: ['calopd.transport.teacher_client']\n"
        "c.outer_packages = lambda: {'grpc_health.v1.health_pb2_grpc'}\n"
        "c.check_torch = c.check_vllm = lambda: None\n"
        "raise SystemExit(c.main())"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    refusal = "RuntimeError: The grpc package installed is at version 1.70.0"
    assert f"error: calopd.transport.teacher_client: {refusal}" in done.stderr
    assert f"error: grpc_health.v1.health_pb2_grpc: {refusal}" in done.stderr


def test_packages_are_found_inside_of_functions() -> None:
    source = "import os\ndef f():\n    from vllm.x import y\n    import calopd.core\nfrom . import z"
    assert packages_of(source) == {"vllm"}
