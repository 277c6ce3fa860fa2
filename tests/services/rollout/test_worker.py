"""A worker without its process: real engine, real queue, no teacher."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.torch import load_file

from calopd.core.types import Sample, Sampling, Ticket
from calopd.data.problems import load_problems
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer
from calopd.rundir.policies import DELTA, policy_dir, publish_policy
from calopd.rundir.policy_publisher import FilePublisher
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.tensor_files import TensorStream
from calopd.transport.queue import Queue
from services.rollout.engines.sampling_engine import Finished, SampleRequest
from services.rollout.engines.torch_sampler import TorchSampler
from services.rollout.sampler import SamplingLoop
from services.rollout.step_share import StepShare
from services.rollout.worker import Worker


def sampled(worker: Worker, ticket: Ticket) -> Sample:
    return asyncio.run(worker.write(ticket))[0].sample


def ticket(version: int, sha256: str) -> Ticket:
    return Ticket("r", "step-000004", 0, "p0-0", 0, 7, version, Sampling(1.0, 1.0, 8), (), policy_sha256=sha256)


@pytest.fixture
def start_worker(tiny, tmp_path, queue: Queue) -> Iterator[Callable[..., Worker]]:
    """Makes a worker of an engine; its sampling loop ends with the test."""
    tokenizer = load_tokenizer(tiny.student)
    prompts = Prompts(tokenizer, load_problems(tiny.train), seed=0, max_prompt_tokens=256, max_context_tokens=512)
    with ExitStack() as loops:

        def start(engine: Any, max_in_flight: int, **options: Any) -> Worker:
            sampler = SamplingLoop(engine)
            loops.callback(sampler.stop)
            return Worker(
                "w",
                queue=queue,
                sampler=sampler,
                teacher=cast(Any, None),
                prompts=prompts,
                reader=FileReader(tmp_path / "policies"),
                max_in_flight=max_in_flight,
                lease_seconds=10.0,
                max_failures=3,
                **options,
            )

        yield start


@pytest.fixture
def worker(tiny, start_worker: Callable[..., Worker]) -> Worker:
    engine = TorchSampler(str(tiny.student), stop_ids=[], dtype="float32", device="cpu", max_rows=4)
    return start_worker(engine, max_in_flight=4)


def test_a_policy_that_was_published_again_is_loaded_before_its_first_ticket(tiny, tmp_path, worker: Worker):
    """A learner was killed after it had published policy 1, and published other weights as policy 1 when it was back.

    The worker has the first ones loaded and has not read the announcement of the second ones yet.
    """
    weights = load_file(tiny.student / "model.safetensors")
    first = sampled(worker, ticket(1, publish_policy(tmp_path / "policies", 1, weights, "r")))
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].roll(1, 0)
    second = sampled(worker, ticket(1, publish_policy(tmp_path / "policies", 1, weights, "r")))
    assert first.policy_version == second.policy_version == 1
    assert first.logprobs.tolist() != second.logprobs.tolist()
    assert second.first_token_time > first.first_token_time > 0


def test_a_damaged_delta_is_asked_for_again_and_sampled_from_when_it_is_whole(
    tiny, tmp_path, queue: Queue, worker: Worker
):
    """The learner publishes it whole while the ticket waits for it."""
    policies, weights = tmp_path / "policies", load_file(tiny.student / "model.safetensors")
    publisher = FilePublisher(policies, "r", 10)
    publisher.publish(1, TensorStream.of(weights))
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    published = publisher.publish(2, TensorStream.of(weights))
    assert published.is_delta
    (policy_dir(policies, 2) / DELTA).write_bytes(b"damaged")

    async def answered() -> Sample:
        sampling = asyncio.create_task(worker.write(ticket(2, published.sha256)))
        while not (asked := await asyncio.to_thread(queue.requested_policies)):
            assert not sampling.done()
            await asyncio.sleep(0.01)
        assert asked == {2}
        assert publisher.publish_whole(2)
        return (await sampling)[0].sample

    assert asyncio.run(answered()).policy_version == 2


def test_a_ticket_that_was_issued_early_is_sampled_from_the_newest_policy(tiny, tmp_path, queue: Queue, worker: Worker):
    weights = load_file(tiny.student / "model.safetensors")
    shas = [publish_policy(tmp_path / "policies", version, weights, "r") for version in (3, 4)]
    queue.announce_policy(3, shas[0])
    early, fixed = replace(ticket(3, shas[0]), newer_policy=True), ticket(3, shas[0])
    assert sampled(worker, early).policy_version == 3
    queue.announce_policy(4, shas[1])
    assert sampled(worker, early).policy_version == 4
    assert sampled(worker, fixed).policy_version == 3


class HeldSampler:
    """An engine that completes nothing until it is released."""

    name = "held"

    def __init__(self) -> None:
        self.released = threading.Event()
        self._running: dict[int, SampleRequest] = {}

    def add(self, key: int, request: SampleRequest) -> None:
        self._running[key] = request

    def step(self) -> list[Finished]:
        if not self.released.wait(0.01):
            return []
        ids, logprobs = np.full(4, 9, np.int32), np.full(4, -1.0, np.float32)
        running, self._running = self._running, {}
        return [Finished(key, ids, logprobs, truncated=True) for key in running]

    def abort(self, keys: set[int]) -> None: ...

    def load(self, directory: Path) -> None: ...


def test_a_worker_takes_its_share_of_a_step_and_then_what_is_left(queue: Queue, start_worker: Callable[..., Worker]):
    """Two workers are expected, one has started: it samples half of the step at once, however many it could."""
    engine = HeldSampler()
    prefetched: list[int] = []

    def upcoming(step: int) -> list[str]:
        prefetched.append(step)
        return ["p0-7"]

    tickets = [Ticket("r", "step-000000", i, f"p0-{i}", 0, i, 0, Sampling(1.0, 1.0, 8), ()) for i in range(8)]

    async def watch() -> None:
        share = StepShare(len(tickets), replicas=2)
        worker = start_worker(engine, max_in_flight=16, share=share, upcoming=upcoming)
        working = asyncio.create_task(worker.run())
        while queue.depth().claimed < 4:
            await asyncio.sleep(0.01)
        assert (queue.depth().claimed, queue.depth().waiting) == (4, 4)
        engine.released.set()
        while len(queue.arrivals("step-000000", block_seconds=0.01)) < 8:
            await asyncio.sleep(0.01)
        working.cancel()

    queue.join()
    queue.open_batch("step-000000", tickets)
    asyncio.run(watch())
    assert prefetched == [1], "the prompts of the next step, once"
