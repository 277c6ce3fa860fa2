"""Jobs that load a model, each in a process of its own: one model at a time, and its memory is free afterwards.

A job is a module of a service. It reads a request and writes an answer, both JSON files.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calopd.config import Config, load_config
from calopd.config.visible_gpus import gpu_environment
from calopd.core.environment import DIE_WITH_PARENT, ERROR_FILE
from calopd.core.errors import CalopdError
from calopd.core.one_line_parser import OneLineParser
from calopd.models.devices import GROWING_BLOCKS

SAMPLE = "services.rollout.jobs.sample_problems"
SCORE = "services.teacher_scorer.jobs.score_sequences"
LEARN = "services.learner.jobs.score_samples"
LAUNCHER = "services.learner.launch"
Request = Mapping[str, Any]
Answer = dict[str, Any]


class JobFailed(CalopdError):
    """A process that could not do its job; the message is its last words."""


def run_job(
    module: str,
    config: Config,
    request: Request,
    *,
    gpus: Sequence[int] = (),
    threads: int = 0,
    launcher: Sequence[str] = (),
) -> Answer:
    """Run a job to its end and return its answer."""
    with tempfile.TemporaryDirectory(prefix="calopd-doctor-") as name:
        folder = Path(name)
        files = {key: folder / file for key, file in FILES.items()}
        files["config"].write_text(config.to_toml(), encoding="utf-8")
        files["request"].write_text(json.dumps(request), encoding="utf-8")
        error = folder / "error"
        environment = {**os.environ, **gpu_environment(gpus), DIE_WITH_PARENT.name: "1", ERROR_FILE.name: str(error)}
        environment |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
        if module == LEARN or (module == SCORE and config.teacher.engine == "torch"):
            environment = GROWING_BLOCKS | environment
        arguments = [word for key, file in files.items() for word in (f"--{key}", str(file))]
        command = [sys.executable, *launcher, "-m", module, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise JobFailed(_reason(module, done, error))
        answer: Answer = json.loads(files["answer"].read_text(encoding="utf-8"))
        return answer


FILES = {"config": "settings.toml", "request": "request.json", "answer": "answer.json"}


def _reason(module: str, done: "subprocess.CompletedProcess[str]", error: Path) -> str:
    if error.is_file():
        return error.read_text(encoding="utf-8")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"{module} ended with exit code {done.returncode}: {lines[-1].strip() if lines else 'no message'}"


def answer_request(work: Callable[[Config, Request], Answer | None], words: Sequence[str] | None = None) -> None:
    """The main function of a job. `None` = another rank answers."""
    parser = OneLineParser(description=sys.modules[work.__module__].__doc__)
    for key in FILES:
        parser.add_argument(f"--{key}", type=Path, required=True)
    arguments = parser.parse_args(words)
    config = load_config(arguments.config, environ={})
    answer = work(config, json.loads(arguments.request.read_text(encoding="utf-8")))
    if answer is not None:
        arguments.answer.write_text(json.dumps(answer), encoding="utf-8")
