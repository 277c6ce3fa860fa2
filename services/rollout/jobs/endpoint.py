"""Sampling by an OpenAI-compatible endpoint, such as `vllm serve` on other machines or a hosted model."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from calopd.core.contexts import messages
from calopd.core.errors import ConfigError
from calopd.core.types import Problem, Sampling

KEY_VARIABLE = "OPENAI_API_KEY"
RETRIES = 6
TIMEOUT_SECONDS = 3_600.0
"""For one response: 12,288 tokens of a large model under load take many minutes."""
BUSY = (408, 409, 429, 500, 502, 503, 504)
"""Status codes after which a request is repeated."""

Key = TypeVar("Key", bound=Hashable)


class EndpointSampler:
    """Chat completions without thinking, with one seed per response."""

    def __init__(self, url: str, model: str, sampling: Sampling, *, in_flight: int, wait_seconds: float = 2.0) -> None:
        self._url, self._model, self._sampling = url.rstrip("/") + "/chat/completions", model, sampling
        self._in_flight, self._wait = in_flight, wait_seconds
        self._pool = ThreadPoolExecutor(in_flight, "endpoint")

    def sample(self, wanted: Iterable[tuple[Key, Problem, int]]) -> Iterator[tuple[Key, None, str]]:
        """For each (key, problem, seed), yield the key and the response's text, in completion order."""
        waiting = iter(wanted)
        running: dict[Future[str], Key] = {}

        def submit() -> None:
            for key, problem, seed in waiting:
                running[self._pool.submit(self._complete, problem, seed)] = key
                return

        for _ in range(self._in_flight):
            submit()
        while running:
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                key = running.pop(future)
                submit()
                yield key, None, future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _complete(self, problem: Problem, seed: int) -> str:
        body = {
            "model": self._model,
            "messages": messages(problem),
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.max_tokens,
            "seed": seed,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        for attempt in range(RETRIES):
            try:
                answer = self._post(body)
                return str(answer["choices"][0]["message"]["content"] or "")
            except urllib.error.HTTPError as error:
                if error.code not in BUSY:
                    said = error.read()[:300].decode(errors="replace")
                    raise ConfigError(
                        f"{self._url} refused the request with status {error.code}: {said}. "
                        f"Check --model, and {KEY_VARIABLE} if the endpoint needs a key"
                    ) from None
                reason = f"status {error.code}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = str(error)
            except (KeyError, IndexError, TypeError):
                raise ConfigError(f"{self._url} did not answer as a chat-completions endpoint does") from None
            if attempt + 1 < RETRIES:
                time.sleep(self._wait * 2**attempt)
        raise ConfigError(
            f"{self._url} failed {RETRIES} times in a row ({reason}). Attempts are saved: repeat the command to resume"
        )

    def _post(self, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
