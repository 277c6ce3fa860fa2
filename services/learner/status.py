"""The learner's HTTP server: health, status and Prometheus metrics."""

import threading
import time
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST

from calopd.core.heartbeat import Heartbeat
from calopd.core.phase import Phase
from calopd.tracking.metrics_page import metrics_of_run
from calopd.transport import auth
from services.learner import prometheus


class Status:
    """Written by the coordinator, read by the HTTP server."""

    def __init__(self, run: str, steps: int, heartbeat: Heartbeat | None = None) -> None:
        self.run, self.steps = run, steps
        self.heartbeat = heartbeat or Heartbeat()
        self.step = 0
        self.checkpoint_step = 0
        """Step of the newest durable checkpoint; 0 if there is none."""
        self.phase, self.progress = Phase.STARTING, ""
        self._since = time.monotonic()
        self.last_metrics: dict[str, Any] = {}
        self.evaluations: dict[int, float] = {}
        """Policy version -> held-out accuracy."""
        self._durations: list[float] = []
        self._started = time.time()

    def enter(self, phase: Phase, progress: str = "") -> None:
        """Start a phase, and count the seconds of the one before."""
        now = time.monotonic()
        prometheus.phase_seconds.labels(self.phase).inc(now - self._since)
        if self.phase is Phase.LEARNING:
            prometheus.busy_seconds.inc(now - self._since)
        self.phase, self.progress, self._since = phase, progress, now

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
            "checkpoint_step": self.checkpoint_step,
            "eta_seconds": self.eta_seconds,
            "uptime_seconds": time.time() - self._started,
            "last_metrics": self.last_metrics,
            "evaluations": self.evaluations,
        }


def create_status_app(status: Status) -> FastAPI:
    """The HTTP API of the learner."""
    app = FastAPI(title="calopd learner", docs_url=None, redoc_url=None)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        if (stalled := status.heartbeat.stalled) is not None:
            raise HTTPException(503, stalled)
        return {"status": "alive"}

    @app.get("/status")
    def get_status() -> dict[str, Any]:
        return status.as_dict()

    @app.get("/metrics")
    def get_metrics() -> Response:
        return Response(metrics_of_run(status.run), media_type=CONTENT_TYPE_LATEST)

    return app


def serve_status(status: Status, port: int) -> None:
    """Serve the status from a background thread until the process ends."""
    app = create_status_app(status)
    server = uvicorn.Server(uvicorn.Config(app, host=auth.host(), port=port, log_config=None))
    threading.Thread(target=server.run, name="status", daemon=True).start()
