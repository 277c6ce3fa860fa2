"""Parts that tests of several services share: a queue without processes, and vLLM up to its start."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calopd.local import embedded_redis
from calopd.transport.queue import Queue, open_queue
from tests.conftest import Server
from tests.ports import free_port


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """The queue of the run `r`, on a server of its own."""
    port = free_port()
    command = embedded_redis.server_command(tmp_path / "redis", port, "secret")
    with Server(command, embedded_redis.server_url(port, "secret")).running() as server:
        queue = open_queue(server.url, "r")
        queue.join()
        yield queue


class Started(Exception):
    """vLLM would start here."""


@pytest.fixture
def vllm_settings(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], dict[str, Any]]:
    """A function that calls its argument, which starts vLLM on a GPU, and returns the settings that vLLM gets."""
    import vllm

    from services.rollout.engines import vllm_sampler
    from services.teacher_scorer.engines import vllm_scorer

    def start(arguments: object) -> None:
        raise Started(vars(arguments))

    monkeypatch.setattr(vllm.LLMEngine, "from_engine_args", start)
    for engine in (vllm_sampler, vllm_scorer):
        monkeypatch.setattr(engine, "set_vllm_environment", lambda *_: None)
        monkeypatch.setattr(engine, "choose_device", lambda _: torch.device("cuda"))

    def settings_of(call: Callable[[], object]) -> dict[str, Any]:
        with pytest.raises(Started) as started:
            call()
        given: dict[str, Any] = started.value.args[0]
        return given

    return settings_of
