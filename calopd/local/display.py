"""The progress of a run: a live table in a terminal, one line per step elsewhere."""

import http.client
import json
import time
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from calopd.config import Config
from calopd.core.phase import Phase
from calopd.local.services import replica_names
from calopd.local.supervisor import Supervisor
from calopd.rundir.files import read_lines

ROWS = 8
FINISHED = "finished"
NARROW = 100
"""Columns of a terminal below which tables stand closer together."""
_LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _get(url: str) -> str | None:
    try:
        with _LOCAL.open(url, timeout=1.0) as answer:
            return str(answer.read().decode())
    except (OSError, http.client.HTTPException):
        return None


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


class Scrape:
    """The samples of one /metrics page, and how busy its process was since the page before."""

    def __init__(self) -> None:
        self.samples: dict[str, float] = {}
        self.busy: float | None = None
        self._last: tuple[float, float] | None = None

    def update(self, url: str, busy_name: str) -> None:
        page = _get(url)
        self.samples = {}
        if page is None:
            self.busy, self._last = None, None
            return
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                self.samples[sample.name] = self.samples.get(sample.name, 0.0) + sample.value
        now, busy = time.monotonic(), self.samples.get(busy_name, 0.0)
        if self._last is not None and now - self._last[0] > 0:
            share = min(1.0, max(0.0, (busy - self._last[1]) / (now - self._last[0])))
            self.busy = share if self.busy is None else 0.7 * self.busy + 0.3 * share
        self._last = (now, busy)


class Display:
    """Queries the services and shows their state."""

    def __init__(self, config: Config, supervisor: Supervisor, console: Console) -> None:
        self._config, self._supervisor, self._console = config, supervisor, console
        self._status: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = read_lines(config.run_dir.metrics)[-ROWS:]
        teachers = 0 if config.teacher.addresses else config.teacher.replicas
        self._teachers = {name: Scrape() for name in replica_names("teacher", teachers)}
        self._rollouts = {name: Scrape() for name in replica_names("rollout", config.rollout.replicas)}
        self._events: list[str] = []
        self._said_phase = ""
        self._started = time.monotonic()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def event(self, text: str) -> None:
        self._events = [*self._events[-3:], f"{_duration(time.monotonic() - self._started)} {text}"]
        if not self._live:
            self._console.print(text, highlight=False, markup=False)

    def update(self) -> None:
        config = self._config
        if page := _get(f"http://127.0.0.1:{config.learner.port}/status"):
            self._status = json.loads(page)
        elif any(process.name == "learner" and process.finished for process in self._supervisor.processes):
            self._status |= {"phase": FINISHED, "progress": "", "step": config.run.steps}
        else:
            self._status = {**self._status, "phase": Phase.STARTING}
        last = self._rows[-1]["step"] if self._rows else -1
        lines = read_lines(config.run_dir.metrics)
        for line in lines if not self._live else []:
            if line["step"] > last:
                self._console.print(self._line(line), highlight=False)
        self._rows = lines[-ROWS:]
        if self._live is None:
            self._say_phase()
            return
        for port, scrape in enumerate(self._teachers.values(), config.teacher.metrics_port):
            scrape.update(f"http://127.0.0.1:{port}/metrics", "calopd_teacher_busy_seconds_total")
        for port, scrape in enumerate(self._rollouts.values(), config.rollout.port):
            scrape.update(f"http://127.0.0.1:{port}/metrics", "calopd_rollout_busy_seconds_total")
        self._live.update(self._render(), refresh=True)

    def _say_phase(self) -> None:
        phase = self._status.get("phase", Phase.STARTING)
        if phase in (Phase.EVALUATING, Phase.EXPORTING) and phase != self._said_phase:
            self._console.print(f"{phase} …", highlight=False)
        self._said_phase = phase

    def _line(self, row: dict[str, Any]) -> str:
        return (
            f"step {row['step'] + 1}/{self._config.run.steps}  retained {_number(row['retained_ratio'])}  "
            f"zero {_number(row['zero_ratio'])}  accuracy {_number(row['accuracy'])}  "
            f"length {row['response_length_mean']:.0f}  {row['tokens'] / row['seconds']:.0f} tokens/s  "
            f"{row['seconds']:.1f} s  ETA {_duration(self._eta(row['step'] + 1))}"
        )

    def _eta(self, done: int) -> float | None:
        """Seconds until the last step is done."""
        return 0.0 if done >= self._config.run.steps else self._status.get("eta_seconds")

    @property
    def _padding(self) -> tuple[int, int]:
        return (0, 1) if self._console.width < NARROW else (0, 2)

    def _render(self) -> Group:
        status, steps = self._status, self._config.run.steps
        done = status.get("step", 0)
        head = Table.grid(padding=self._padding)
        head.add_row(
            Text(f"{self._config.run.name} · {self._config.method.name}", style="bold"),
            ProgressBar(total=steps, completed=done, width=min(40, max(10, self._console.width - 66))),
            f"step {done}/{steps}",
            f"ETA {_duration(self._eta(done))}",
            f"elapsed {_duration(time.monotonic() - self._started)}",
        )
        parts: list[Any] = [Panel(head, border_style="dim"), self._roles(), self._steps()]
        known = sorted((int(version), value) for version, value in status.get("evaluations", {}).items())
        if known:
            shown = " → ".join(f"{value:.3f} (policy {version})" for version, value in known[:1] + known[1:][-4:])
            parts.append(Text(f"held-out accuracy: {shown}", style="dim"))
        parts += [Text(event, style="yellow") for event in self._events]
        return Group(*parts)

    def _steps(self) -> Table:
        table = Table(box=None, header_style="dim", padding=self._padding)
        for name in ("step", "retained", "zero-adv.", "accuracy", "length", "missing", "tokens/s", "seconds"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(
                str(row["step"] + 1),
                _number(row["retained_ratio"]),
                _number(row["zero_ratio"]),
                _number(row["accuracy"]),
                f"{row['response_length_mean']:.0f}",
                str(row["tickets_missing"]),
                f"{row['tokens'] / row['seconds']:.0f}",
                f"{row['seconds']:.1f}",
            )
        return table

    def _policy(self, samples: dict[str, float]) -> float:
        """The policy of a rollout; in the end that of the run, since an earlier one may have been evaluated last."""
        if self._status.get("phase") == FINISHED:
            return self._config.run.steps
        return samples.get("calopd_rollout_policy_version", 0)

    def _roles(self) -> Table:
        table = Table(box=None, header_style="dim", padding=self._padding)
        for name in ("role", "busy", "restarts", "doing"):
            table.add_column(name, no_wrap=True)
        restarts = {process.name: process.restarts for process in self._supervisor.processes}

        def row(name: str, busy: float | None, doing: str) -> None:
            table.add_row(name, "–" if busy is None else f"{busy:.0%}", str(restarts.get(name, 0)), doing)

        for name, scrape in self._rollouts.items():
            samples = scrape.samples
            doing = (
                f"sampling {samples.get('calopd_rollout_sampling_requests', 0):.0f}, "
                f"awaiting the teacher {samples.get('calopd_rollout_scoring_requests', 0):.0f}, "
                f"policy {self._policy(samples):.0f}"
            )
            row(name, scrape.busy, doing if samples else "starting")
        for name, scrape in self._teachers.items():
            waiting = scrape.samples.get("calopd_teacher_waiting_requests", 0)
            row(name, scrape.busy, f"scoring {waiting:.0f}" if scrape.samples else "starting")
        phase = self._status.get("phase", Phase.STARTING)
        last = self._rows[-1] if self._rows else {}
        busy = last["seconds_learner"] / last["seconds"] if last else None
        row("learner", busy, f"{phase} {self._status.get('progress', '')}")
        return table
