"""torchrun for ranks on several nodes: it passes on the exit code of the rank that failed, and meets lost nodes again.

A pod that ends makes its Job wait longer before every new pod, whatever the exit code: if another node was lost, this
one does not end. torchrun's rendezvous has no authentication. Its id is a secret derived from the token, and its state
is read without executing what a pickle may contain; a network policy must still keep others away.
"""

import hashlib
import hmac
import os
import sys
import time
from typing import NoReturn

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, dynamic_rendezvous
from torch.distributed.run import parse_args, run

from calopd.core.errors import ConfigError
from calopd.rundir.safe_pickle import RestrictedPickle
from calopd.transport import auth
from services.learner.peer_loss import PEER_LOST_EXIT
from services.learner.rank_exits import exit_code

REJOINED = "_CALOPD_REJOINED"
MAX_REJOINS = 5
"""Times in a row that the others are met again after less than `LONG_SECONDS` of work."""
LONG_SECONDS = 600.0
RENDEZVOUS_TYPES = frozenset(
    {
        ("builtins", "set"),
        ("datetime", "datetime"),
        ("datetime", "timezone"),
        ("datetime", "timedelta"),
        (dynamic_rendezvous.__name__, "_NodeDesc"),
        (dynamic_rendezvous.__name__, "_RendezvousState"),
    }
)
"""Everything that the state of a rendezvous consists of."""


def launch_node(words: list[str]) -> NoReturn:
    """Run torchrun with these options until its ranks have ended; does not return."""
    start = time.monotonic()
    options = parse_args(words)
    options.rdzv_id = rendezvous_id(options.rdzv_id, words)
    read_state_without_code()
    try:
        run(options)
        sys.exit(0)
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        code = exit_code((failure.local_rank, failure.exitcode) for failure in failures)
    except (RendezvousError, DistError) as error:
        # The store of the rendezvous is in the first pod.
        print(f"the rendezvous failed: {error}", file=sys.stderr)
        code = PEER_LOST_EXIT
    if code == PEER_LOST_EXIT:
        _rejoin(time.monotonic() - start)
    sys.exit(code)


def rendezvous_id(name: str, words: list[str]) -> str:
    """A secret that all nodes of a run derive alike: of the token, the given id and the program."""
    if not auth.token():
        raise ConfigError("ranks on several nodes need CALOPD_TOKEN, the same on all nodes: set one")
    program = words[words.index("-m") :]
    return hmac.new(auth.token().encode(), "\0".join([name, *program]).encode(), hashlib.sha256).hexdigest()


def read_state_without_code() -> None:
    """Let torch build only the types of a rendezvous from what is in the store: anybody may have written it."""
    setattr(dynamic_rendezvous, "pickle", RestrictedPickle(RENDEZVOUS_TYPES))  # noqa: B010 (its type is a module)


def _rejoin(seconds: float) -> None:
    """Start again in this process, to wait for the lost node; returns if that was of no use several times in a row."""
    count = 1 if seconds > LONG_SECONDS else 1 + int(os.environ.get(REJOINED, "0"))
    if count > MAX_REJOINS:
        return
    print(
        f"ranks of another node were lost after {seconds:.0f} s: meeting again ({count})", file=sys.stderr, flush=True
    )
    os.environ[REJOINED] = str(count)
    # The others need time to notice the loss too: until then, the old rendezvous refuses newcomers.
    time.sleep(2**count)
    os.execv(sys.executable, [sys.executable, "-m", "services.learner.launch", *sys.argv[1:]])
