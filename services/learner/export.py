"""The results of a finished run: the student in Hugging Face format, and the summary."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from calopd.config import Config
from calopd.rundir.checkpoints import Record
from calopd.rundir.files import atomic_folder, read_lines, write_json
from calopd.rundir.layout import RunDir
from calopd.rundir.policies import WEIGHTS
from services.learner.evaluations import gain_interval, read_evaluation
from services.learner.student import Student


def export_model(target: Path, student: Student, weights: dict[str, torch.Tensor], tokenizer: Any) -> None:
    """Write the trained student so that transformers and vLLM load it by path."""
    with atomic_folder(target) as folder:
        student.lm.config.save_pretrained(folder)
        student.lm.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def write_summary(run_dir: RunDir, config: Config, record: Record) -> None:
    """Write the results of the run; ratios are means over its steps."""
    lines = read_lines(run_dir.metrics)
    before, after = (read_evaluation(run_dir, version) for version in (0, config.run.steps))
    summary: dict[str, Any] = {
        "steps": record.step,
        "method": config.method.name,
        "sampler": record.sampler,
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
