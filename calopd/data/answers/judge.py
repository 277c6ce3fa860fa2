"""math-verify in a separate process with hard limits on CPU time and memory.

The process imports math-verify once and answers requests from a fork of itself. The kernel kills a fork that reaches a
limit, even inside C code, and the parent forks a replacement within milliseconds.
"""

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading

CPU_SECONDS = 2.0
"""Limit of one comparison, in CPU time, so that the load of the machine does not change a verdict."""
WALL_SECONDS = 20.0
"""Limit of one comparison in real time: only a process that is stopped or starved reaches it, so it is retried."""
ATTEMPTS = 3
VERDICTS = ("true", "false", "limit")
LIMIT_SIGNALS = {signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
"""How a comparison ends that reaches its CPU time or memory; any other signal came from outside."""
ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL")
"""All that the process inherits: it parses the text of a model, and no token is any of its business."""
MEMORY_BYTES = 1 << 30
START_SECONDS = 60.0


def _serve() -> None:
    """Read one JSON [gold, given, seconds] per line; write one true, false, limit or killed per line."""
    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verify(parse("$x+1$", parsing_timeout=None), parse("$1+x$", parsing_timeout=None), timeout_seconds=None)
    _say("ready")
    while True:
        child = os.fork()
        if child == 0:
            _answer(parse, verify)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        within = os.WIFEXITED(status) or os.WTERMSIG(status) in LIMIT_SIGNALS
        _say("limit" if within else "killed")


def _answer(parse, verify) -> None:  # type: ignore[no-untyped-def]
    """Answer requests until stdin ends or a limit kills this process."""
    for line in sys.stdin:
        gold, given, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        try:
            # Gold first: math-verify is not symmetric. Its own timeouts use signals, which C code does not handle.
            sides = [parse(f"${text}$", parsing_timeout=None) for text in (gold, given)]
            verdict = bool(verify(*sides, timeout_seconds=None, allow_set_relation_comp=True))
        except MemoryError:
            os._exit(1)
        except Exception:  # sympy raises arbitrary errors on malformed input, which equals nothing
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(json.dumps(verdict))
    os._exit(0)


def _say(word: str) -> None:
    os.write(1, word.encode() + b"\n")


class OverLimit(Exception):
    """A comparison exceeded its limits."""


class JudgeLost(RuntimeError):
    """The process was killed again and again: there is no verdict, so the answer is neither right nor wrong."""


class Judge:
    """Client of the math-verify process: one comparison at a time; the first call starts the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, given: str, seconds: float | None = None) -> bool:
        """The verdict of math-verify; raises OverLimit if the limits are reached first, JudgeLost if there is none."""
        with self._lock:
            for _ in range(ATTEMPTS):
                answer = self._ask(json.dumps([gold, given, seconds or CPU_SECONDS]))
                if answer == "limit":
                    raise OverLimit(f"{given[:60]!r} against {gold[:60]!r}")
                if answer in VERDICTS:
                    return answer == "true"
            raise JudgeLost(
                f"the math-verify process was killed {ATTEMPTS} times: the memory of the machine may be full"
            )

    def _ask(self, request: str) -> str | None:
        """The process's answer; None if it was lost."""
        process = self._process if self._process and self._process.poll() is None else self._start()
        assert process.stdin is not None
        answer = None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request + "\n")
            process.stdin.flush()
            answer = self._read(process, WALL_SECONDS + 10)
        if answer not in VERDICTS:
            # Also if it was killed between two requests: its message would be taken for the answer to a later one.
            self.stop()
        return answer

    @staticmethod
    def _read(process: "subprocess.Popen[str]", seconds: float) -> str | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        return process.stdout.readline().strip() or None if ready else None

    def _start(self) -> "subprocess.Popen[str]":
        """Start the process and wait for its imports, so that they do not count towards the limit of a request."""
        command = [sys.executable, "-m", "calopd.data.answers.judge"]
        pipe = subprocess.PIPE
        # The order of terms in sympy, and with it the computing time, depends on the hash seed.
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | {"PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        if self._read(self._process, START_SECONDS) != "ready":
            self.stop()
            raise RuntimeError("the math-verify process did not start: check that math-verify is installed")
        return self._process

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # includes a fork that is still computing
            with contextlib.suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None


judge = Judge()
atexit.register(judge.stop)

if __name__ == "__main__":
    _serve()
