"""A rollout replica as the process it is, with a real teacher and a real queue."""

import dataclasses
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from calopd.config import load_config
from calopd.core.types import Sampling, ScoreOptions, Ticket
from calopd.local import embedded_redis
from calopd.rundir.policies import publish_policy
from calopd.rundir.run_id import ensure_run_id
from calopd.transport.queue import Arrival, Queue, open_queue
from tests.conftest import Server
from tests.ports import free_port
from tests.services.processes import service, wait_until_serving

pytestmark = pytest.mark.slow
TOKEN = "token-of-the-test"


@dataclass(frozen=True)
class Replica:
    url: str
    queue: Queue
    run: str

    def get(self, path: str) -> Any:
        return json.load(urllib.request.urlopen(self.url + path, timeout=120))

    def post(self, path: str, body: dict[str, Any], token: str = TOKEN) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ticket(self, batch: str, index: int, problem_id: str, **settings: Any) -> Ticket:
        defaults: dict[str, Any] = {
            "contexts": ("c0", "eval+", "eval-"),
            "score_options": ScoreOptions(4, want_entropy=True),
        }
        return Ticket(
            self.run, batch, index, problem_id, 0, index, 0, Sampling(1.0, 1.0, 16), **{**defaults, **settings}
        )

    def wait_for(self, batch: str, count: int, seconds: float = 300) -> list[Arrival]:
        deadline = time.monotonic() + seconds
        while len(arrivals := self.queue.arrivals(batch)) < count:
            assert time.monotonic() < deadline
        return arrivals


def wait(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def replica(tiny):
    port = free_port()
    server = Server(
        embedded_redis.server_command(tiny.root / "redis", port, "secret"), embedded_redis.server_url(port, "secret")
    )
    file = tiny.write_config("rollout")
    config = load_config(file, environ={})
    run = ensure_run_id(config.run_dir)
    environment = {**os.environ, "CALOPD_TOKEN": TOKEN, "CALOPD__QUEUE__URL": server.url}
    logs: list[Path] = [tiny.root / "rollout-teacher.log", tiny.root / "rollout.log"]
    with (
        server.running(),
        service("services.teacher_scorer", file, logs[0], environment) as teacher,
        service("services.rollout", file, logs[1], environment) as process,
    ):
        wait_until_serving(config.teacher.port, teacher, logs[0])
        url = f"http://127.0.0.1:{config.rollout.port}"

        def ready() -> bool:
            assert process.poll() is None, logs[1].read_text()
            try:
                return urllib.request.urlopen(url + "/readyz", timeout=5).status == 200
            except OSError:
                return False

        wait(ready)
        yield Replica(url, open_queue(server.url, run), run)


def test_it_says_what_it_is(replica):
    assert replica.get("/healthz") == {"status": "alive"}
    assert replica.get("/readyz")["sampler"].startswith("torch")
    assert replica.get("/v1/policy")["version"] == 0
    page = urllib.request.urlopen(replica.url + "/metrics").read().decode()
    assert "calopd_rollout_busy_seconds_total" in page


def test_generate_samples_scores_and_calibrates(replica):
    body = {"problem": "What is 2 plus 3?", "answer": "5", "max_tokens": 12, "seed": 7, "score": True}
    status, answer = replica.post("/v1/generate", body)
    assert status == 200
    count = len(answer["response_ids"])
    assert 1 <= count <= 12
    assert answer["correct"] is False
    calibration = answer["calibration"]
    assert set(calibration["teacher_logprobs"]) == {"c0", "eval+", "eval-"}
    student, lower, upper = (np.array(x) for x in (answer["logprobs"], calibration["lower"], calibration["upper"]))
    expected = np.maximum(lower - student, 0) - np.maximum(student - upper, 0)
    assert np.allclose(calibration["advantage"], expected, atol=1e-5)
    assert 0 <= calibration["retained_ratio"] <= 1
    assert replica.post("/v1/generate", body)[1]["response_ids"] == answer["response_ids"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"problem": ""}, "at least 1 character"),
        ({"problem": "x", "temprature": 1}, "temprature"),
        ({"problem": "x", "temperature": 0}, "greater than 0"),
        ({"problem": "long " * 900}, "data.max_prompt_tokens = 256"),
    ],
)
def test_generate_explains_a_bad_request(replica, body, message):
    status, answer = replica.post("/v1/generate", body)
    assert status == 422
    assert message in json.dumps(answer)


def test_generate_needs_the_token(replica):
    assert replica.post("/v1/generate", {"problem": "x"}, token="wrong")[0] == 401


def test_tickets_become_scored_trajectories(replica):
    tickets = [replica.ticket("step-000000", i, f"p0-{i}") for i in range(12)]
    replica.queue.open_batch("step-000000", tickets)
    arrivals = replica.wait_for("step-000000", 12)
    for trajectory in replica.queue.results("step-000000", [arrival.index for arrival in arrivals]):
        count = len(trajectory.sample.response_ids)
        assert trajectory.scores.names == ("c0", "eval+", "eval-")
        assert trajectory.scores.logprobs.shape == (3, count)
        assert trajectory.scores.top_k.ids.shape == (count, 4)
        assert trajectory.scores.entropy.shape == (count,)
        assert trajectory.sample.policy_version == 0
        assert trajectory.sampler.startswith("torch")


def test_an_evaluation_ticket_is_not_scored(replica):
    replica.queue.open_batch("eval-x", [replica.ticket("eval-x", 0, "p1-0", contexts=(), score_options=ScoreOptions())])
    replica.wait_for("eval-x", 1)
    assert replica.queue.results("eval-x", [0])[0].scores is None


def test_a_ticket_that_cannot_be_done_is_set_aside_and_the_others_go_on(replica):
    tickets = [replica.ticket("step-000001", 0, "no-such-problem"), replica.ticket("step-000001", 1, "p0-1")]
    replica.queue.open_batch("step-000001", tickets)
    assert sorted(a.index for a in replica.wait_for("step-000001", 2) if a.tokens) == [1]
    ((buried, reason),) = replica.queue.dead_letters()
    assert buried == tickets[0]
    assert "'no-such-problem' is in neither" in reason


def test_a_policy_that_is_not_there_yet_is_waited_for(replica, tiny):
    """As on a shared volume that shows the policy later than Redis shows the ticket."""
    ticket = replica.ticket("step-000002", 0, "p0-0")
    replica.queue.open_batch("step-000002", [dataclasses.replace(ticket, policy_version=1)])
    assert replica.queue.arrivals("step-000002", block_seconds=1.0) == []
    weights = load_file(tiny.student / "model.safetensors")
    sha256 = publish_policy(tiny.root / "runs" / "rollout" / "policies", 1, weights, replica.run)
    replica.queue.announce_policy(1, sha256)
    replica.wait_for("step-000002", 1)
    assert replica.queue.results("step-000002", [0])[0].sample.policy_version == 1
    assert replica.get("/v1/policy")["version"] == 1


def test_an_evaluation_gives_way_to_a_step_and_is_taken_up_again(replica):
    """Long evaluation responses are under way when the tickets of a step come: those are first, and nothing is lost."""
    long = Sampling(1.0, 1.0, 700)
    plain = {"contexts": (), "score_options": ScoreOptions()}
    version = replica.get("/v1/policy")["version"]
    # Three times what is sampled at once: when the step comes, evaluations are in hand and others wait.
    count = 48
    slow = [replica.ticket("eval-000003", i, f"p1-{i % 16}", **plain) for i in range(count)]
    slow = [dataclasses.replace(t, sampling=long, policy_version=version) for t in slow]
    replica.queue.open_batch("eval-000003", slow)

    def sampling() -> bool:
        page = urllib.request.urlopen(replica.url + "/metrics").read().decode()
        return re.search(r"^calopd_rollout_sampling_requests(\{.*\})? [1-9]", page, re.M) is not None

    wait(sampling)
    step = [dataclasses.replace(replica.ticket("step-000009", i, f"p0-{i}"), policy_version=version) for i in range(4)]
    replica.queue.open_batch("step-000009", step)
    replica.wait_for("step-000009", 4)
    assert len(replica.queue.arrivals("eval-000003", block_seconds=0.01)) < count
    arrivals = replica.wait_for("eval-000003", count)
    assert sorted(arrival.index for arrival in arrivals) == list(range(count))
    page = urllib.request.urlopen(replica.url + "/metrics").read().decode()
    assert re.search(r'^calopd_rollout_trajectories_total\{.*outcome="given back".*\}', page, re.M)
    assert replica.queue.waiting() == 0
