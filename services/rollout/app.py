"""The HTTP API of a rollout replica."""

import asyncio
from dataclasses import replace
from typing import Any

import torch
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field

from calopd.config.sections import MethodSection
from calopd.config.sections.sampling import SamplingKeys
from calopd.core.calibration import calibrated_advantage, retained_ratio, tsd_region, zero_ratio
from calopd.core.contexts import BASE, probe_names
from calopd.core.errors import CalopdError, EngineFailed, QueueUnavailable
from calopd.core.methods import ProbeSettings
from calopd.core.types import Problem, Sample, Scores
from calopd.data.answers import is_correct
from calopd.tracking.metrics_page import metrics_of_run
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.http_guard import HttpGuard, until_disconnected
from services.rollout.refused_body import refuse_body
from services.rollout.sampler import WrongPolicy
from services.rollout.worker import Worker


class GenerateRequest(SamplingKeys):
    problem: str = Field(min_length=1, max_length=100_000)
    answer: str | None = Field(default=None, max_length=1_000)
    solution: str = Field(default="", max_length=100_000)
    temperature: float = Field(default=1.0, gt=0, le=10)
    max_tokens: int = Field(default=2**31 - 1, ge=1)
    """At most the service's rollout.max_tokens."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    score: bool = False


def create_app(worker: Worker, method: MethodSection, max_tokens: int, run: str) -> FastAPI:
    settings = method.settings
    relaxation = (settings if isinstance(settings, ProbeSettings) else ProbeSettings()).relaxation
    app = FastAPI(title="calopd rollout", docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestValidationError, refuse_body)
    app.add_middleware(HttpGuard, max_in_flight=worker.max_in_flight)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        if worker.sampler.failed:
            raise HTTPException(503, "the sampling engine has failed")
        if (stalled := worker.sampler.heartbeat.stalled) is not None:
            raise HTTPException(503, stalled)
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        healthz()
        if worker.policy.unreadable is not None:
            raise HTTPException(503, f"no policy can be loaded: {worker.policy.unreadable}")
        try:
            await asyncio.to_thread(worker.queue.ping)
        except QueueUnavailable as error:
            raise HTTPException(503, f"the queue cannot be reached: {error}") from None
        return {"status": "ready", "sampler": worker.sampler.name}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(metrics_of_run(run), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/policy")
    def policy() -> dict[str, Any]:
        return {"version": worker.sampler.policy_version, "sampler": worker.sampler.name}

    # The token is checked by HttpGuard; the dependency documents it in the OpenAPI schema.
    @app.post("/v1/generate", dependencies=[Depends(HTTPBearer(auto_error=False))])
    async def generate(request: GenerateRequest, connection: Request) -> dict[str, Any]:
        return await until_disconnected(answer_to(request), connection)

    async def answer_to(request: GenerateRequest) -> dict[str, Any]:
        problem = Problem("adhoc", request.problem, request.answer or "", request.solution)
        sampling = replace(request.sampling, max_tokens=min(request.max_tokens, max_tokens))
        try:
            ids = worker.prompts.ids(problem)
            async with worker.turns.together():  # not beside a ticket that may crash the engine
                sampled = worker.sampler.sample(SampleRequest(ids, sampling, request.seed))
                try:
                    sample = await asyncio.wrap_future(sampled)
                except asyncio.CancelledError:
                    worker.sampler.abort(sampled)
                    raise
            text = worker.prompts.decode(sample.response_ids)
            answer: dict[str, Any] = {
                "text": text,
                "response_ids": sample.response_ids.tolist(),
                "logprobs": sample.logprobs.tolist(),
                "truncated": sample.truncated,
                "policy_version": sample.policy_version,
                "sampler": worker.sampler.name,
            }
            if request.answer is not None:
                answer["correct"] = await asyncio.to_thread(is_correct, text, request.answer)
            if request.score:
                names = (BASE, *(method.probe_contexts or probe_names(ProbeSettings().probes)))
                prompts = {name: worker.prompts.ids(problem, name) for name in names}
                scores = await worker.teacher.score("adhoc", sample.response_ids, prompts)
                answer["calibration"] = calibration(sample, scores, relaxation)
        except (EngineFailed, WrongPolicy) as error:  # another replica may do it, or this one later
            raise HTTPException(503, str(error)) from None
        except CalopdError as error:
            raise HTTPException(422, str(error)) from None
        return answer

    return app


def calibration(sample: Sample, scores: Scores, relaxation: float) -> dict[str, Any]:
    """Calibrate one response as Cal-OPD does, with the rollout's log-probabilities as the student's."""
    student, (teacher, *probes) = torch.from_numpy(sample.logprobs), torch.from_numpy(scores.logprobs.copy())
    region = tsd_region(teacher, torch.stack(probes), relaxation)
    advantage = calibrated_advantage(region, student)
    return {
        "teacher_logprobs": dict(zip(scores.names, scores.logprobs.tolist(), strict=True)),
        "lower": region.lower.tolist(),
        "upper": region.upper.tolist(),
        "advantage": advantage.tolist(),
        "retained_ratio": retained_ratio(advantage, teacher - student).item(),
        "zero_ratio": zero_ratio(advantage).item(),
        "teacher_revision": scores.teacher_revision,
    }
