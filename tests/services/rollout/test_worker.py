"""A worker without its process: real engine, real queue, no teacher."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.torch import load_file

from calopd.core.types import Sample, Sampling, Ticket
from calopd.data.problems import load_problems
from calopd.local import embedded_redis
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer
from calopd.rundir.policies import publish_policy
from calopd.transport.queue import Queue, open_queue
from services.rollout.engines.torch_sampler import TorchSampler
from services.rollout.sampler import SamplingLoop
from services.rollout.worker import Worker
from tests.conftest import Server
from tests.ports import free_port


@pytest.fixture
def queue(tmp_path: Path):
    port = free_port()
    command = embedded_redis.server_command(tmp_path / "redis", port, "secret")
    with Server(command, embedded_redis.server_url(port, "secret")).running() as server:
        yield open_queue(server.url, "r")


def sampled(worker: Worker, ticket: Ticket) -> Sample:
    return asyncio.run(worker.write(ticket))[0].sample


def test_a_policy_that_was_published_again_is_loaded_before_its_first_ticket(tiny, tmp_path, queue: Queue):
    """A learner was killed after it had published policy 1, and published other weights as policy 1 when it was back.

    The worker has the first ones loaded and has not read the announcement of the second ones yet.
    """
    tokenizer = load_tokenizer(tiny.student)
    prompts = Prompts(tokenizer, load_problems(tiny.train), seed=0, max_prompt_tokens=256, max_context_tokens=512)
    engine = TorchSampler(str(tiny.student), stop_ids=[], dtype="float32", device="cpu", max_rows=4)
    sampler = SamplingLoop(engine)
    worker = Worker(
        "w",
        queue=queue,
        sampler=sampler,
        teacher=cast(Any, None),
        prompts=prompts,
        policies=tmp_path / "policies",
        max_in_flight=4,
        lease_seconds=10.0,
        max_deliveries=3,
    )
    ticket = Ticket("r", "step-000001", 0, "p0-0", 0, 7, 1, Sampling(1.0, 1.0, 8), ())
    weights = load_file(tiny.student / "model.safetensors")
    queue.announce_policy(1, publish_policy(tmp_path / "policies", 1, weights, "r"))
    first = sampled(worker, ticket)
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].roll(1, 0)
    queue.announce_policy(1, publish_policy(tmp_path / "policies", 1, weights, "r"))
    second = sampled(worker, ticket)
    assert first.policy_version == second.policy_version == 1
    assert first.logprobs.tolist() != second.logprobs.tolist()
    sampler.stop()
