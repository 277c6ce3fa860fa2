"""What a rank and its launcher make of the loss of another rank."""

import signal

import pytest

from calopd.local.entry_point import CONFIG_ERROR_EXIT
from services.learner import node_launcher
from services.learner.peer_loss import PEER_LOST_EXIT, exit_if_peer_lost, is_peer_loss
from services.learner.rank_exits import exit_code

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:29131"
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, ncclRemoteError"


@pytest.mark.parametrize("message", [GLOO, NCCL])
def test_a_lost_peer_ends_a_rank_with_an_exit_code_of_its_own(message: str) -> None:
    def checkpoint() -> None:
        try:
            raise RuntimeError(message)
        except RuntimeError as error:
            raise ValueError("the checkpoint could not be written") from error

    with pytest.raises(SystemExit) as ended, exit_if_peer_lost():
        checkpoint()
    assert ended.value.code == PEER_LOST_EXIT


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: out of memory"), ConnectionResetError("Connection reset by peer")]
)
def test_other_errors_rise(error: Exception) -> None:
    """A connection to Redis that breaks is no lost peer."""
    assert not is_peer_loss(error)
    with pytest.raises(type(error)), exit_if_peer_lost():
        raise error


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((PEER_LOST_EXIT, -signal.SIGTERM), PEER_LOST_EXIT),
        ((-signal.SIGABRT, PEER_LOST_EXIT), PEER_LOST_EXIT),
        ((PEER_LOST_EXIT, -signal.SIGKILL), 137),
        ((PEER_LOST_EXIT, 1), 1),
        ((1, CONFIG_ERROR_EXIT), CONFIG_ERROR_EXIT),
    ],
)
def test_the_launcher_tells_causes_from_consequences(ranks: tuple[int, ...], expected: int) -> None:
    assert exit_code(enumerate(ranks)) == expected


def test_the_launcher_gives_up_after_some_attempts_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(node_launcher.os, "execv", lambda program, words: started.append(words))
    monkeypatch.setattr(node_launcher.time, "sleep", lambda seconds: None)
    monkeypatch.setenv(node_launcher.REJOINED, "0")
    for _ in range(node_launcher.MAX_REJOINS + 2):
        node_launcher._rejoin(30)
    assert len(started) == node_launcher.MAX_REJOINS
    node_launcher._rejoin(node_launcher.LONG_SECONDS + 1)
    assert len(started) == node_launcher.MAX_REJOINS + 1
    assert started[0][1:3] == ["-m", "services.learner.launch"]
