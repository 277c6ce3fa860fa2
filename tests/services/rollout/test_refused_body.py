"""Bodies that FastAPI's own answer fails on, because it repeats the input."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError

from services.rollout.app import GenerateRequest
from services.rollout.refused_body import refuse_body

BODIES = [
    ("text/plain", b"\xee\xee"),
    ("application/json", b'{"problem": "\\ud800"}'),
    ("application/json", b'{"problem": 1e999}'),
    ("application/json", b'{"problem": "p", "seed": NaN}'),
]


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_a_body_that_cannot_be_repeated_is_refused(kind, body):
    app = FastAPI()
    app.add_exception_handler(RequestValidationError, refuse_body)

    @app.post("/v1/generate")
    def generate(request: GenerateRequest) -> None: ...

    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://rollout") as client:
            return await client.post("/v1/generate", content=body, headers={"content-type": kind})

    answer = asyncio.run(post())
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"
