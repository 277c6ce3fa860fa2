"""The HTTP surface of the learner: what it is doing, for people, probes and Prometheus."""

import threading
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST

from calopd.tracking.metrics_page import metrics_of_run
from calopd.transport import auth
from services.learner import prometheus


class Status:
    """Written by the training loop, read by the app."""

    def __init__(self, run: str, steps: int) -> None:
        self.run, self.steps = run, steps
        self.step = 0
        self._phase, self._since = "starting", time.monotonic()
        self.progress = ""
        self.last_metrics: dict[str, Any] = {}
        self.evaluations: dict[int, float] = {}
        """Policy version -> held-out accuracy."""
        self._durations: list[float] = []
        self._started = time.time()

    @property
    def phase(self) -> str:
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        """The first word is the phase's name in the prometheus."""
        now = time.monotonic()
        prometheus.phase_seconds.labels(self._phase.split()[0]).inc(now - self._since)
        self._phase, self._since = phase, now

    def finish_step(self, line: dict[str, Any]) -> None:
        self.step = line["step"] + 1
        self.last_metrics = line
        self._durations = [*self._durations[-9:], line["seconds"]]

    @property
    def eta_seconds(self) -> float | None:
        if not self._durations:
            return None
        return (self.steps - self.step) * sum(self._durations) / len(self._durations)

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "phase": self.phase,
            "progress": self.progress,
            "step": self.step,
            "steps": self.steps,
            "eta_seconds": self.eta_seconds,
            "uptime_seconds": time.time() - self._started,
            "last_metrics": self.last_metrics,
            "evaluations": self.evaluations,
        }


def serve_status(status: Status, port: int) -> None:
    """Serve it from a thread of its own, for as long as the process lives."""
    app = FastAPI(title="calopd learner", docs_url=None, redoc_url=None)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/status")
    def get_status() -> dict[str, Any]:
        return status.as_dict()

    @app.get("/metrics")
    def get_metrics() -> Response:
        return Response(metrics_of_run(status.run), media_type=CONTENT_TYPE_LATEST)

    server = uvicorn.Server(uvicorn.Config(app, host=auth.host(), port=port, log_config=None))
    threading.Thread(target=server.run, name="status", daemon=True).start()
