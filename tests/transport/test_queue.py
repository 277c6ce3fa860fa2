"""Backends of the queue: one module each, found by the scheme of the URL."""

import inspect

import pytest

import calopd.transport
from calopd.core.errors import ConfigError, QueueUnavailable
from calopd.transport.queue import Queue, open_queue

BACKEND = """
from calopd.transport.queue import Queue

class OtherQueue(Queue):
    def __init__(self, url, run):
        self.url, self.run = url, run

def open_queue(url, run, *, timeout_seconds=None):
    OtherQueue.__abstractmethods__ = frozenset()
    return OtherQueue(url, run)
"""


def test_a_new_backend_is_one_module(tmp_path, monkeypatch):
    (tmp_path / "other_queue.py").write_text(BACKEND)
    monkeypatch.setattr(calopd.transport, "__path__", [*calopd.transport.__path__, str(tmp_path)])
    queue = open_queue("other://somewhere", "r")
    assert isinstance(queue, Queue)
    assert (vars(queue)["url"], queue.run) == ("other://somewhere", "r")


def test_a_backend_whose_package_is_missing_says_so(tmp_path, monkeypatch):
    (tmp_path / "lacking_queue.py").write_text("import a_package_that_is_not_installed")
    monkeypatch.setattr(calopd.transport, "__path__", [*calopd.transport.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_not_installed"):
        open_queue("lacking://somewhere", "r")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "queue.url is empty"),
        ("kafka://host/0", "queue.url has kafka://, for which there is no backend: expected one of redis://"),
        ("localhost:6379", "queue.url has a URL without a scheme"),
        ("teacher_client://host", "no backend"),
        ("../x://host", "no backend"),
    ],
)
def test_an_unknown_scheme_is_refused_with_those_that_exist(url, message):
    with pytest.raises(ConfigError, match=message):
        open_queue(url, "r")


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_redis_is_a_backend_and_says_when_the_server_is_down(scheme):
    queue = open_queue(f"{scheme}://127.0.0.1:1/0", "r", timeout_seconds=1)
    with pytest.raises(QueueUnavailable):
        queue.ping()


def test_backends_define_no_public_method_that_services_could_come_to_use():
    """Beyond the protocol RedisQueue has `client` and `waiting`, for its own tests."""
    from calopd.transport.redis_queue import RedisQueue

    public = {name for name, _ in inspect.getmembers(RedisQueue, inspect.isfunction) if not name.startswith("_")}
    protocol = {name for name, _ in inspect.getmembers(Queue, inspect.isfunction) if not name.startswith("_")}
    assert public - protocol == {"waiting"}
