"""Is the final answer right? The last balanced \\boxed{...}, compared exactly, as a decimal, then by math-verify."""

import atexit
import multiprocessing as mp
import re
import threading
from decimal import Decimal, InvalidOperation
from multiprocessing.connection import Connection

TIME_LIMIT_SECONDS = 5.0


def last_boxed(text: str) -> str | None:
    """The content of the last balanced `\\boxed{...}`, or None."""
    for start in (m.end() for m in reversed(list(re.finditer(r"\\boxed\s*\{", text)))):
        depth = 1
        for position in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start:position]
    return None


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


def _verify_forever(pipe: Connection) -> None:
    from math_verify import parse, verify

    while True:
        try:
            gold, given = pipe.recv()
        except EOFError:
            return
        try:
            # The gold answer first: math-verify is not symmetric. No timeout of its own: the parent kills us.
            parsed = [parse(f"${text}$", parsing_timeout=None) for text in (gold, given)]
            verdict = bool(verify(parsed[0], parsed[1], timeout_seconds=None))
        except Exception:  # sympy raises anything on odd input, and odd input is not equal
            verdict = False
        pipe.send(verdict)


class _Judge:
    """math-verify in a process of its own, killed and started anew when it exceeds the time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: mp.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def equal(self, gold: str, given: str, seconds: float = TIME_LIMIT_SECONDS) -> bool:
        with self._lock:
            if self._process is None or not self._process.is_alive():
                self._start()
            assert self._pipe is not None
            try:
                self._pipe.send((gold, given))
                if self._pipe.poll(seconds):
                    return bool(self._pipe.recv())
            except (EOFError, BrokenPipeError, ConnectionResetError):
                pass
            self.stop()
            return False

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_verify_forever, args=(theirs,), daemon=True, name="math-verify")
        self._process.start()
        theirs.close()
        # The first request would otherwise pay for the import of sympy out of its own time limit.
        self._pipe.send(("1", "1"))
        self._pipe.recv()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


_judge = _Judge()
atexit.register(_judge.stop)
