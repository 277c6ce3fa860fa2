"""The results of a finished run: the student in Hugging Face format, and the summary."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from calopd.config import Config
from calopd.rundir.checkpoints import Record
from calopd.rundir.files import atomic_folder, read_lines, write_json
from calopd.rundir.layout import RunDir
from calopd.rundir.policies import WEIGHTS
from calopd.rundir.tensor_files import TensorStream, write_tensors
from services.learner.evaluations import gain_interval, read_evaluation
from services.learner.student import Student


def own_dtype(path: str) -> torch.dtype:
    """The data type of a model's weights, by its configuration."""
    dtype = AutoConfig.from_pretrained(path, trust_remote_code=False).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def export_model(target: Path, student: Student, weights: TensorStream, tokenizer: Any) -> None:
    """Write the trained student so that transformers and vLLM load it by path."""
    with atomic_folder(target) as folder:
        config = copy.deepcopy(student.lm.config)
        config.dtype = weights.specs[0].dtype
        config.save_pretrained(folder)
        student.lm.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_tensors(folder / WEIGHTS, weights)


def write_summary(run_dir: RunDir, config: Config, record: Record) -> None:
    """Write the results of the run; ratios are means over its steps."""
    lines = read_lines(run_dir.metrics)
    before, after = (read_evaluation(run_dir, version) for version in (0, config.run.steps))
    summary: dict[str, Any] = {
        "steps": record.step,
        "method": config.method.name,
        "sampler": record.sampler,
        "emulated": config.emulated,
        "accuracy_before": before["accuracy"] if before else None,
        "accuracy_after": after["accuracy"] if after else None,
        "gain_interval_95": list(gain_interval(before, after)) if before and after else None,
        "evaluation_problems": after["problems"] if after else 0,
        "retained_ratio": sum(line["retained_ratio"] for line in lines) / len(lines),
        "zero_ratio": sum(line["zero_ratio"] or 0.0 for line in lines) / len(lines),
        "tickets_issued": record.issued,
        "trajectories_used": record.trajectories_used,
        "tickets_missing": record.issued - record.trajectories_used,
        "seconds": record.seconds,
    }
    write_json(run_dir.summary, summary)
