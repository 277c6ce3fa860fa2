"""The trained student on disk."""

import os
import stat
from types import SimpleNamespace
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from calopd.models.model_files import check_model
from calopd.rundir.tensor_files import TensorStream
from services.learner.export import export_model


def test_others_may_read_the_exported_model(tiny, tmp_path):
    """Another user evaluates it on a shared volume."""
    lm = AutoModelForCausalLM.from_pretrained(tiny.untied)
    student: Any = SimpleNamespace(lm=lm)
    before = os.umask(0o022)
    try:
        weights = TensorStream.of(lm.state_dict())
        export_model(tmp_path / "model", student, weights, AutoTokenizer.from_pretrained(tiny.student))
    finally:
        os.umask(before)
    check_model("MODEL", str(tmp_path / "model"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o644}, modes
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o755
