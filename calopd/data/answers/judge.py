"""math-verify in a process of its own, whose time and memory end at a limit, whatever it was given.

The process imports math-verify once and answers from a fork of itself. A fork that runs into a limit is ended by the
kernel, in the middle of whatever it computes, and the next one is there in milliseconds.
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
"""What one comparison may compute. CPU time: a busy machine does not change a verdict."""
WALL_SECONDS = 20.0
MEMORY_BYTES = 1 << 30
START_SECONDS = 60.0


def _serve() -> None:
    """A JSON pair [gold, given, seconds] a line in, true, false or null (a limit was met) a line out."""
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
        _say("null")


def _answer(parse, verify) -> None:  # type: ignore[no-untyped-def]
    """Answer until there are no more questions, or until one ends this process."""
    for line in sys.stdin:
        gold, given, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        try:
            # The gold answer first: math-verify is not symmetric. Its own time limits are signals that C code outlasts.
            sides = [parse(f"${text}$", parsing_timeout=None) for text in (gold, given)]
            verdict = bool(verify(*sides, timeout_seconds=None, allow_set_relation_comp=True))
        except MemoryError:
            os._exit(1)
        except Exception:  # sympy raises anything on odd input, and odd input is not equal
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _say(json.dumps(verdict))
    os._exit(0)


def _say(word: str) -> None:
    os.write(1, word.encode() + b"\n")


class OverLimit(Exception):
    """A comparison that did not end within its limits."""


class Judge:
    """Asks the process, one comparison at a time; starts it at the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, given: str, seconds: float | None = None) -> bool:
        """math-verify's verdict; OverLimit where it does not come to one within its limits."""
        with self._lock:
            process = self._process if self._process and self._process.poll() is None else self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([gold, given, seconds or CPU_SECONDS]) + "\n")
                process.stdin.flush()
                answer = self._read(process, WALL_SECONDS + 10)
            except BrokenPipeError:
                answer = None
            if answer is None:
                self.stop()
            if answer not in ("true", "false"):
                raise OverLimit(f"{given[:60]!r} against {gold[:60]!r}")
            return answer == "true"

    @staticmethod
    def _read(process: "subprocess.Popen[str]", seconds: float) -> str | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        return process.stdout.readline().strip() or None if ready else None

    def _start(self) -> "subprocess.Popen[str]":
        """Started and imported before the first request, which would otherwise pay for it out of its own limit."""
        command = [sys.executable, "-m", "calopd.data.answers.judge"]
        pipe = subprocess.PIPE
        # sympy's order of terms, and with it the time that it takes, follows the hash seed.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
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
            raise RuntimeError("the judge of answers does not start: is math-verify installed?")
        return self._process

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with the fork that may be computing
            self._process.communicate()
            self._process = None


judge = Judge()
atexit.register(judge.stop)

if __name__ == "__main__":
    _serve()
