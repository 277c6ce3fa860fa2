"""Is the final answer right? The last balanced \\boxed{...}, compared exactly, as a decimal, then by math-verify."""

import atexit
import json
import re
import select
import subprocess
import sys
import threading
from decimal import Decimal, InvalidOperation

TIME_LIMIT_SECONDS = 5.0
START_SECONDS = 60.0


_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


def last_boxed(text: str) -> str | None:
    """The content of the last balanced `\\boxed{...}`, or None; one pass, whatever the student repeats."""
    opened: list[int] = []  # where the content of each open brace starts; -1 for a brace that boxes nothing
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace[0].startswith("\\boxed"):
            opened.append(brace.end())
        elif brace[0] == "{":
            opened.append(-1)
        elif brace[0] == "}" and opened:
            start = opened.pop()
            if start >= 0 and (last is None or start > last[0]):
                last = (start, brace.start())
    return text[last[0] : last[1]] if last else None


def answered_after_think(response: str) -> bool:
    """Whether the boxed answer stood after the end of the thinking."""
    return last_boxed(response.rpartition("</think>")[2]) is not None if "</think>" in response else False


def normalise(answer: str) -> str:
    """Spaces, dollar signs, thousands commas, `\\text{}` and a closing full stop do not count."""
    answer = answer.strip().strip("$").strip()
    answer = re.sub(r"\\(?:left|right|displaystyle|,|!|;|:| )", "", answer)
    answer = re.sub(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}", r"\1", answer)
    answer = answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\%", "").replace("%", "")
    answer = re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", answer)
    return re.sub(r"\s+", "", answer).rstrip(".")


def _decimal(text: str) -> Decimal | None:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def is_correct(response: str, gold: str) -> bool:
    """Whether the response's last boxed answer equals the gold one; nothing boxed is wrong."""
    boxed = last_boxed(response)
    if boxed is None:
        return False
    given, wanted = normalise(boxed), normalise(gold)
    if given == wanted:
        return True
    given_number, wanted_number = _decimal(given), _decimal(wanted)
    if given_number is not None and wanted_number is not None:
        return given_number == wanted_number
    return _judge.equal(wanted, given)


def _serve() -> None:
    """The judge's process: a JSON pair [gold, given] a line in, true or false a line out."""
    from math_verify import parse, verify

    print("ready", flush=True)
    for line in sys.stdin:
        try:
            # The gold answer first: math-verify is not symmetric. No time limit of its own: the parent kills us.
            gold, given = (parse(f"${text}$", parsing_timeout=None) for text in json.loads(line))
            verdict = bool(verify(gold, given, timeout_seconds=None))
        except Exception:  # sympy raises anything on odd input, and odd input is not equal
            verdict = False
        print(json.dumps(verdict), flush=True)


class _Judge:
    """math-verify in a process of its own, killed and started anew when it exceeds the time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, given: str, seconds: float = TIME_LIMIT_SECONDS) -> bool:
        with self._lock:
            process = self._process if self._process and self._process.poll() is None else self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([gold, given]) + "\n")
                process.stdin.flush()
                answer = self._read(process, seconds)
            except BrokenPipeError:
                answer = None
            if answer is None:
                self.stop()
            return answer == "true"

    @staticmethod
    def _read(process: "subprocess.Popen[str]", seconds: float) -> str | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        return process.stdout.readline().strip() or None if ready else None

    def _start(self) -> "subprocess.Popen[str]":
        """Started and imported before the first request, which would otherwise pay for it out of its own limit."""
        command = [sys.executable, "-m", "calopd.answers"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        if self._read(self._process, START_SECONDS) != "ready":
            self.stop()
            raise RuntimeError("the judge of answers does not start: is math-verify installed?")
        return self._process

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_judge = _Judge()
atexit.register(_judge.stop)

if __name__ == "__main__":
    _serve()
