"""The answer to a request body that is not what the API expects."""

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse


async def refuse_body(request: Request, error: Exception) -> JSONResponse:
    """422 with place and reason, without the input: it may be large, or bytes that no JSON can hold."""
    assert isinstance(error, RequestValidationError)
    reasons = [{"loc": [str(part) for part in e["loc"]], "msg": e["msg"], "type": e["type"]} for e in error.errors()]
    return JSONResponse({"detail": reasons}, 422)
