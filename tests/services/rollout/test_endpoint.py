"""`calopd data solve --endpoint`: a real HTTP server receives what an OpenAI-compatible one expects."""

import argparse
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from calopd.cli.main import main
from calopd.cli.registry import find_command
from calopd.core.errors import ConfigError
from calopd.core.options import PAPER_SOLUTIONS
from calopd.core.types import Problem
from calopd.data.problems import load_problems, problem_seed
from services.rollout.jobs.endpoint import EndpointSampler
from services.rollout.jobs.solve import solve
from tests.tiny import make_problems


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict] = []
        self.headers: list[str | None] = []
        self.failures = [503]
        self.refuse = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refuse or self.server.failures:
            self.send_response(400 if self.server.refuse else self.server.failures.pop())
            self.end_headers()
            return
        self.server.bodies.append(body)
        self.server.headers.append(self.headers["Authorization"])
        words = body["messages"][1]["content"].rstrip("?").split()
        total = int(words[2]) + int(words[4])
        # Every other seed has a wrong answer, so that some problems stay unsolved.
        answer = total if body["seed"] % 2 else total + 1
        text = json.dumps({"choices": [{"message": {"content": f"So \\boxed{{{answer}}}"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = Server()
    yield running
    running.shutdown()
    running.server_close()


def arguments(*words: object) -> argparse.Namespace:
    command, rest = find_command(["data", "solve", *map(str, words)])
    return command.parser().parse_args(rest)


def test_solved_problems_are_kept_and_requests_are_the_papers(server, tmp_path):
    source, out = make_problems(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    kept, total = solve(arguments(source, "-o", out, "--model", "strong", "--endpoint", server.url, "--in-flight", 4))
    problems = load_problems(source)
    expected = {p.id for p in problems if problem_seed(0, p.id) % 2}
    assert 0 < len(expected) < 12
    assert {p.id for p in load_problems(out)} == expected
    assert (kept, total) == (len(expected), 12)
    assert {body["seed"] for body in server.bodies} == {problem_seed(0, p.id) for p in problems}
    assert set(server.headers) == {"Bearer secret"}
    body = server.bodies[0]
    assert body["messages"][0]["role"] == "system"
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("strong", 1.0, 1.0, 12_288)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    before = len(server.bodies)
    solve(arguments(source, "-o", out, "--model", "strong", "--endpoint", server.url))
    assert len(server.bodies) == before, "nothing is attempted twice"


def test_the_command_does_not_look_for_the_served_model_here(server, tmp_path, monkeypatch):
    source, out = make_problems(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    words = ["data", "solve", str(source), "-o", str(out), "--model", "served/elsewhere", "--endpoint", server.url]
    monkeypatch.setattr(sys, "argv", ["calopd", *words])
    main()
    assert started[0][-7:] == words[2:]


def test_a_refused_request_is_explained(server):
    server.refuse = True
    sampler = EndpointSampler(server.url, "strong", PAPER_SOLUTIONS, in_flight=1, wait_seconds=0.01)
    with pytest.raises(ConfigError, match=r"status 400.*--model"):
        list(sampler.sample([("a", Problem("a", "What is 1 plus 2?", "3"), 0)]))
    sampler.close()


def test_an_endpoint_that_stays_away_is_given_up(server):
    server.failures = [503] * 100
    sampler = EndpointSampler(server.url, "strong", PAPER_SOLUTIONS, in_flight=1, wait_seconds=0.001)
    with pytest.raises(ConfigError, match="6 times in a row"):
        list(sampler.sample([("a", Problem("a", "What is 1 plus 2?", "3"), 0)]))
    sampler.close()
