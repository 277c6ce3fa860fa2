"""What a finished run leaves: the student in Hugging Face format, and summary.json."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from calopd.config import Config
from calopd.rundir.files import read_lines, write_json
from services.learner.checkpoint import Record
from services.learner.evaluations import gain_interval, read_evaluation
from services.learner.student import Student


def export_model(target: Path, student: Student, weights: dict[str, torch.Tensor], tokenizer: Any) -> None:
    """Write the trained student so that transformers and vLLM load it by path."""
    aside = target.with_name(target.name + ".aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    student.lm.config.save_pretrained(aside)
    student.lm.generation_config.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    save_file(
        {name: w.contiguous() for name, w in weights.items()}, aside / "model.safetensors", metadata={"format": "pt"}
    )
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)


def write_summary(run_dir: Path, config: Config, record: Record) -> None:
    """summary.json: what the run came to; ratios are means over the steps."""
    lines = read_lines(run_dir / "metrics.jsonl")
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
    write_json(run_dir / "summary.json", summary)
