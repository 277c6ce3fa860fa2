"""Faults of Redis and of teachers that are running, planted one at a time: each is named, with what to do."""

import re
from pkgutil import resolve_name

import grpc
import numpy as np
import pytest
import redis

from calopd.config import load_config
from calopd.doctor import full_checks
from calopd.doctor.case import Case
from calopd.doctor.full_checks import judge_accuracy, judge_mismatch, teacher_against_model
from calopd.doctor.outcome import Verdict
from calopd.doctor.redis_checks import durability, server
from calopd.local import embedded_redis
from services.teacher_scorer.servicer import Limits
from tests.conftest import Server
from tests.doctor import teacher_servers
from tests.doctor.examined import check_fault, failures
from tests.doctor.teacher_servers import load_engine, no_teacher, teacher_server
from tests.ports import free_port
from tests.services.processes import ROOT

TOKEN = "token-of-the-test"


@pytest.fixture(scope="module")
def redis_running(tmp_path_factory):
    port = free_port()
    command = embedded_redis.server_command(tmp_path_factory.mktemp("redis"), port, "secret")
    with Server(command, embedded_redis.server_url(port, "secret")).running() as running:
        yield running


@pytest.fixture(scope="module")
def teachers(tiny):
    engine, tokens = load_engine(str(tiny.teacher))
    with teacher_server(engine, tokens) as first, teacher_server(engine, tokens) as second:
        yield first, second


@pytest.fixture
def two_teachers(teachers):
    yield teachers
    for teacher in teachers:
        teacher.restore()


def config_of(tiny, *settings):
    return load_config(tiny.write_config("doctor"), settings, environ={})


def with_teachers(tiny, *addresses, settings=()):
    return config_of(tiny, f"teacher.addresses={list(addresses)!r}", *settings)


def with_redis(tiny, url):
    return config_of(tiny, f"queue.url={url!r}")


def test_a_good_server_passes_and_keeps_nothing_of_the_check(tiny, redis_running):
    assert not failures(with_redis(tiny, redis_running.url))
    assert redis.Redis.from_url(redis_running.url).keys() == []


@pytest.mark.parametrize(
    ("setting", "bad", "message", "advice"),
    [
        ("appendonly", "no", "keeps no append-only file", "--appendonly yes"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy is allkeys-lru", "maxmemory-policy noeviction"),
    ],
)
def test_a_redis_that_may_lose_trajectories_is_found(tiny, redis_running, setting, bad, message, advice):
    client = redis.Redis.from_url(redis_running.url)
    (good,) = client.config_get(setting).values()
    client.config_set(setting, bad)
    try:
        check_fault(with_redis(tiny, redis_running.url), "Redis durability", message, advice)
    finally:
        client.config_set(setting, good)


@pytest.mark.parametrize("rights", [["~other:*", "+@all"], ["~calopd:*", "+@all", "-xautoclaim"]])
def test_a_redis_user_without_rights_is_found(tiny, redis_running, rights):
    redis.Redis.from_url(redis_running.url).execute_command("ACL", "SETUSER", "weak", "reset", "on", ">pw", *rights)
    url = redis_running.url.replace(":secret@", "weak:pw@")
    check_fault(with_redis(tiny, url), "Redis rights", "lacks a right", "ACL SETUSER ... ~calopd:*")


@pytest.mark.parametrize(("more", "verdict"), [([], Verdict.PASSED), (["-info"], Verdict.NOT_CHECKED)])
def test_the_user_of_the_containers_has_the_rights_of_a_run(tiny, redis_running, more, verdict):
    """Without INFO, the user is told how to find out about durability."""
    line = re.search(r"user calopd on >\S+ (.*)\"", (ROOT / "deploy/docker/redis.sh").read_text())
    user = ["ACL", "SETUSER", "calopd", "reset", "on", ">pw", *line[1].split(), *more]
    redis.Redis.from_url(redis_running.url).execute_command(*user)
    config = with_redis(tiny, redis_running.url.replace(":secret@", "calopd:pw@"))
    assert not failures(config)
    outcome = durability(Case(config))
    assert outcome.verdict is verdict
    assert ("+info" in outcome.advice) == bool(more)


def test_a_redis_that_is_not_there_or_refuses_the_password_is_found(tiny, redis_running):
    check_fault(with_redis(tiny, f"redis://127.0.0.1:{free_port()}/0"), "Redis", "no Redis server", "correct queue.url")
    outcome = server(Case(with_redis(tiny, redis_running.url.replace("secret", "wrong"))))
    assert outcome.verdict is Verdict.FAILED
    assert "wrong" not in outcome.message + outcome.advice
    assert "CALOPD__QUEUE__URL" in outcome.advice


def test_good_teachers_pass(tiny, two_teachers):
    assert not failures(with_teachers(tiny, *(teacher.address for teacher in two_teachers)))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (grpc.StatusCode.NOT_FOUND, "something else listens there"),
        (grpc.StatusCode.UNIMPLEMENTED, "something else listens there"),
        (grpc.StatusCode.UNAVAILABLE, "start the teacher"),
    ],
)
def test_an_address_that_is_no_teacher_is_found(tiny, two_teachers, code, advice):
    with no_teacher(code) as address:
        config = with_teachers(tiny, two_teachers[0].address, address)
        check_fault(config, "teachers", f"{address} does not answer ({code.name}", advice)


def test_a_teacher_that_is_not_there_is_found(tiny):
    check_fault(with_teachers(tiny, f"127.0.0.1:{free_port()}"), "teachers", "UNAVAILABLE", "start the teacher")
    check_fault(with_teachers(tiny, "no.such.host.invalid:50051"), "teachers", "cannot be resolved", "addresses")


def test_a_missing_token_is_found(tiny, monkeypatch):
    engine, tokens = load_engine(str(tiny.teacher))
    with teacher_server(engine, tokens, TOKEN) as teacher:
        config = with_teachers(tiny, teacher.address)
        check_fault(config, "teachers", "UNAUTHENTICATED", "set CALOPD_TOKEN")
        monkeypatch.setenv("CALOPD_TOKEN", TOKEN)
        assert not failures(config)


def test_a_replica_with_other_weights_is_found(tiny, two_teachers):
    first, second = two_teachers
    second.engine.revision = "0123456789ab"
    config = with_teachers(tiny, first.address, second.address)
    check_fault(config, "teacher revisions", f"{second.address} has the revision 0123456789ab", "same model files")


def test_a_teacher_with_another_vocabulary_is_found(tiny, two_teachers, monkeypatch):
    teacher = two_teachers[0]
    swapped = list(teacher.servicer._vocabulary)
    swapped[300], swapped[301] = swapped[301], swapped[300]
    monkeypatch.setattr(teacher.servicer, "_vocabulary", swapped)
    config = with_teachers(tiny, teacher.address)
    check_fault(config, "teacher vocabulary", "differ in 2 of 400 token ids (id 300:", "of one family")


def test_a_teacher_with_a_small_head_is_found(tiny, two_teachers):
    two_teachers[0].engine.vocabulary_size = 399
    config = with_teachers(tiny, two_teachers[0].address)
    check_fault(config, "teacher vocabulary", "head has 399 ids, the vocabulary 400", "of one family")


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"max_tokens": 500}, "max_tokens = 500"), ({"max_contexts": 2}, "= 2, but"), ({"max_top_k": 8}, "max_top_k = 8")],
)
def test_a_teacher_with_low_limits_is_found(tiny, two_teachers, limits, message):
    values = {"max_tokens": 1024, "max_contexts": 16, "max_top_k": 64} | limits
    two_teachers[1].servicer._limits = Limits(**values)
    found = failures(with_teachers(tiny, *(teacher.address for teacher in two_teachers)))
    assert message in found["teacher limits"].message
    assert f"raise teacher.{next(iter(limits))}" in found["teacher limits"].advice


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (teacher_servers.nan, "NaN, infinite or above 0"),
        (teacher_servers.constant, "have the log-probability -1.5"),
        (teacher_servers.without_prompt, "do not depend on the prompt"),
    ],
)
def test_a_teacher_with_bad_scores_is_found_without_the_model(tiny, two_teachers, fault, message):
    two_teachers[1].engine.fault = fault
    config = with_teachers(tiny, *(teacher.address for teacher in two_teachers))
    check_fault(config, "teacher scores", message, "do not train with it")


@pytest.fixture
def jobs_in_process(monkeypatch):
    """Jobs of the teacher called as functions: the same code without the start of a process."""

    def run(module, config, request, **_):
        return resolve_name(f"{module}:{module.rpartition('.')[2]}")(config, request)

    monkeypatch.setattr(full_checks, "run_job", run)


@pytest.mark.parametrize(
    ("fault", "message", "advice"),
    [
        (teacher_servers.one_position_late, "one position too late", "from the logits of token t - 1"),
        (teacher_servers.temperature_two, "divided by a temperature of 2", "score at temperature 1"),
        (teacher_servers.next_ids, "scores of the next higher ids", "the ids of another tokenizer"),
        (teacher_servers.other_tokenizer, "differ from the model's by", "the quantization and the ids"),
    ],
)
def test_a_teacher_that_computes_something_else_is_found(tiny, two_teachers, jobs_in_process, fault, message, advice):
    good, bad = two_teachers
    assert teacher_against_model(Case(with_teachers(tiny, good.address))).verdict is Verdict.PASSED
    bad.engine.fault = fault
    outcome = teacher_against_model(Case(with_teachers(tiny, good.address, bad.address)))
    assert outcome.verdict is Verdict.FAILED
    assert outcome.message.startswith(f"{bad.address}: ")
    assert message in outcome.message
    assert advice in outcome.advice


def test_the_engine_is_compared_if_no_teacher_runs(tiny, jobs_in_process):
    outcome = teacher_against_model(Case(config_of(tiny)))
    assert outcome.verdict is Verdict.PASSED
    assert outcome.message.startswith("engine torch: mean difference")


def test_a_sampler_with_other_weights_than_the_learner_is_found():
    logprobs = np.log(np.random.default_rng(0).uniform(0.1, 1, 50)).tolist()
    learned = {"logprobs": [logprobs], "dtype": "bfloat16"}

    def sampled(shift: float) -> dict:
        return {"sampler": "vllm", "samples": [{"logprobs": [value + shift for value in logprobs]}]}

    assert judge_mismatch(sampled(0.02), learned).verdict is Verdict.PASSED
    assert judge_mismatch(sampled(0.02), learned | {"dtype": "float32"}).verdict is Verdict.FAILED
    apart = judge_mismatch(sampled(0.2), learned)
    assert apart.verdict is Verdict.FAILED
    assert "rollout.dtype" in apart.advice
    assert judge_mismatch(sampled(float("nan")), learned).verdict is Verdict.FAILED


def test_a_teacher_that_is_worse_than_the_student_is_found():
    def solved(count: int) -> dict[str, bool]:
        return {str(number): number < count for number in range(16)}

    assert judge_accuracy(solved(6), solved(15)).verdict is Verdict.PASSED
    worse = judge_accuracy(solved(6), solved(0))
    assert worse.message == "the teacher solves 0 of 16 problems, the student 6"
    assert "chat template and thinking mode" in worse.advice
    assert judge_accuracy(solved(2), solved(1)).verdict is Verdict.NOT_CHECKED
