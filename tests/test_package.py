"""The package itself: its public names, its one version number, its type information."""

import subprocess
import sys
import tomllib

import pytest

import calopd
from tests.services.processes import ROOT


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def test_public_names_are_importable_from_the_package():
    import torch

    from calopd import METHODS, Region, calibrated_advantage, is_correct, retained_ratio, tsd_region, zero_ratio

    base, student = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -4.0])
    region = tsd_region(base, torch.stack([base + 0.5, base - 0.5]), relaxation=1.0)
    assert isinstance(region, Region)
    calibrated = calibrated_advantage(region, student)
    assert calibrated.tolist() == [0.0, 1.5]
    assert retained_ratio(calibrated, base - student).item() == 0.75
    assert zero_ratio(calibrated).item() == 0.5
    assert is_correct(r"\boxed{4}", "4")
    assert {"opd", "cal_opd", "tsd_filter"} <= set(METHODS)
    assert set(calopd.__all__) <= set(dir(calopd))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = calopd.no_such_name


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, calopd; assert not {'torch', 'numpy', 'pydantic', 'grpc'} & set(sys.modules)"
    code += "; assert 'calopd.core' not in sys.modules; calopd.tsd_region"
    code += "; assert 'calopd.core.calibration' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_is_checked_before_its_start_without_torch():
    code = "import sys; from pathlib import Path; from calopd.config import load_config; import calopd.local.training"
    code += "; from calopd.doctor.checks import require"
    code += "; require(load_config(Path('configs/demo.toml'), [], {}), besides=('ports',))"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_stated_once():
    stating = [
        name
        for name in tracked_files()
        if not name.startswith(("requirements/", "examples/demo/"))
        and name.lower() != "changelog.md"
        and calopd.__version__.encode() in (ROOT / name).read_bytes()
    ]
    assert stating == ["calopd/__init__.py"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "calopd.__version__"}


def test_type_information_is_shipped():
    assert (ROOT / "calopd" / "py.typed").exists()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["calopd"]
