"""Checks of `POST /v1/generate` before its body is read: token, size, number of requests; and clients that leave."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calopd.transport import auth

GUARDED = ("POST", "/v1/generate")
MAX_BODY_BYTES = 4 << 20
"""Problem and solution at their longest, in JSON."""

CLIENT_LEFT = 499

T = TypeVar("T")


class HttpGuard:
    """ASGI middleware. FastAPI reads a whole body before it checks anything, whoever sent it."""

    def __init__(self, app: ASGIApp, max_in_flight: int) -> None:
        self._app, self._max_in_flight = app, max_in_flight
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != GUARDED:
            await self._app(scope, receive, send)
            return
        try:
            self._check(dict(scope["headers"]))
        except HTTPException as refused:
            await _refuse(send, refused)
            return
        self._in_flight += 1
        try:
            await self._app(scope, _limited(receive), send)
        finally:
            self._in_flight -= 1

    def _check(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if auth.token() and not (scheme.lower() == "bearer" and auth.is_valid(given.strip(), auth.token())):
            raise HTTPException(401, "no or wrong token: send `Authorization: Bearer <CALOPD_TOKEN>`")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
        if self._in_flight >= self._max_in_flight:
            raise HTTPException(
                429, f"rollout.max_in_flight = {self._max_in_flight} requests are in flight: retry later"
            )


def _limited(receive: Receive) -> Receive:
    """Count the bytes of a body whose length is not announced."""
    total = 0

    async def limited() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body may have at most {MAX_BODY_BYTES} bytes")
        return message

    return limited


async def _refuse(send: Send, refused: HTTPException) -> None:
    # The connection ends: the rest of a body would have to be read otherwise.
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(b"www-authenticate", b"Bearer")] if refused.status_code == 401 else []
    await send({"type": "http.response.start", "status": refused.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": refused.detail}).encode()})


async def until_disconnected(work: Coroutine[Any, Any, T], request: Request) -> T:
    """The result of `work`, which is cancelled if the client leaves; the body of the request must have been read."""
    working = asyncio.create_task(work)
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(CLIENT_LEFT)  # nobody reads it
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
