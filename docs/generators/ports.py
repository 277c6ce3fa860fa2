"""docs/ports.md: every listening port and what guards it."""

from calopd.config.listeners import LISTENERS
from docs.generators.markdown import code, table

INTRODUCTION = """\
# Ports

<!-- Generated from the code by `make docs`. Do not edit: change calopd/config/listeners.py. -->

Every port that a process listens on, and what guards it. A test compares this list with the listening sockets of a real
run, with the manifests and with the images. It tries each port without a credential, with a wrong and with the right
one, from this machine and from another network namespace (`tests/e2e/test_ports.py`). What is not protected is in
[SECURITY.md](../SECURITY.md).

In a local run every port is on the loopback interface. In containers and pods the roles listen on all interfaces of
their own network, which the compose network `inner` or the network policies close to others. On several nodes these
policies are required: torch's rendezvous and the connections between ranks have no authentication.
"""


def page() -> str:
    """The text of docs/ports.md."""
    heads = ("Port", "Setting", "Role", "Protocol", "Listens on", "Guarded", "By", "Open")
    rows = [
        (
            str(listener.port or "any"),
            code(listener.setting) if listener.setting else "",
            f"{listener.role}: {listener.name}",
            listener.protocol,
            listener.address,
            listener.guarded,
            listener.guard,
            listener.open,
        )
        for listener in LISTENERS
    ]
    return f"{INTRODUCTION}\n{table(heads, rows)}\n"
