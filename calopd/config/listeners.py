"""Every port that a process of this project listens on, and what guards it. docs/ports.md is generated from here."""

from dataclasses import dataclass

TOKEN_GUARD = "`CALOPD_TOKEN`, sent as a bearer token"
NOTHING = "—"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A port and its guards."""

    name: str
    role: str
    """The role that listens; also its name in containers and manifests."""
    port: int | None
    """The default; None = chosen by the kernel."""
    setting: str = ""
    """The setting of a run that changes it."""
    protocol: str
    address: str
    """Where it listens."""
    guarded: str
    """Calls that need a credential."""
    guard: str
    """The credential, or what keeps others away."""
    open: str
    """Calls that anybody who reaches the port can make."""
    local: bool = True
    """Whether a run on one machine (`calopd run`) has it."""


ADDRESS = "`CALOPD_HOST`: 127.0.0.1, or another address if a token is set"

LISTENERS = (
    Listener(
        name="status",
        role="learner",
        port=8_080,
        setting="learner.port",
        protocol="HTTP",
        address=ADDRESS,
        guarded=NOTHING,
        guard=NOTHING,
        open="`/healthz`, `/status`, `/metrics`, `/openapi.json`",
    ),
    Listener(
        name="scores",
        role="teacher",
        port=50_051,
        setting="teacher.port",
        protocol="gRPC",
        address=ADDRESS,
        guarded="every call of `calopd.v1.TeacherScorer`",
        guard=f"{TOKEN_GUARD}; with mutual TLS a client certificate too",
        open="health and reflection; with mutual TLS nothing",
    ),
    Listener(
        name="metrics of the teacher",
        role="teacher",
        port=9_101,
        setting="teacher.metrics_port",
        protocol="HTTP",
        address=ADDRESS,
        guarded=NOTHING,
        guard=NOTHING,
        open="`/metrics`",
    ),
    Listener(
        name="rollout",
        role="rollout",
        port=8_081,
        setting="rollout.port",
        protocol="HTTP",
        address=ADDRESS,
        guarded="`POST /v1/generate`, before its body is read",
        guard=TOKEN_GUARD,
        open="`/healthz`, `/readyz`, `/metrics`, `/v1/policy`, `/openapi.json`",
    ),
    Listener(
        name="queue",
        role="redis",
        port=6_399,
        setting="queue.port",
        protocol="Redis",
        address="127.0.0.1",
        guarded="everything",
        guard="a random password for each start",
        open="nothing",
    ),
    Listener(
        name="queue in containers",
        role="redis",
        port=6_379,
        protocol="Redis",
        address="the network of the containers",
        guarded="everything",
        guard="`REDIS_PASSWORD`: one ACL user, limited to `calopd:*`; TLS with the component `tls`",
        open="nothing",
        local=False,
    ),
    Listener(
        name="ranks of one host",
        role="learner",
        port=None,
        protocol="gloo, NCCL",
        address="127.0.0.1, with two ranks or more, and engines with several GPUs",
        guarded=NOTHING,
        guard="other machines cannot connect",
        open="everything, to users of the same machine",
    ),
    Listener(
        name="rendezvous of several nodes",
        role="learner",
        port=29_500,
        protocol="torch TCPStore",
        address="all interfaces of the first learner pod",
        guarded=NOTHING,
        guard="the NetworkPolicy `learner`, which is **required**; the id is derived from `CALOPD_TOKEN`",
        open="everything, to whoever can connect",
        local=False,
    ),
    Listener(
        name="ranks of several nodes",
        role="learner",
        port=None,
        protocol="gloo, NCCL, torch TCPStore",
        address="all interfaces of the learner pods",
        guarded=NOTHING,
        guard="the NetworkPolicy `learner`, which is **required**",
        open="everything, to whoever can connect",
        local=False,
    ),
    Listener(
        name="Prometheus",
        role="prometheus",
        port=9_090,
        protocol="HTTP",
        address="127.0.0.1 of the host, by `docker compose`",
        guarded=NOTHING,
        guard="other machines cannot connect",
        open="all metrics",
        local=False,
    ),
    Listener(
        name="Grafana",
        role="grafana",
        port=3_000,
        protocol="HTTP",
        address="127.0.0.1 of the host, by `docker compose`",
        guarded="everything",
        guard="`GRAFANA_PASSWORD`",
        open="the login page",
        local=False,
    ),
)


def local_settings() -> tuple[str, ...]:
    """The settings that choose the ports of a run on one machine."""
    return tuple(listener.setting for listener in LISTENERS if listener.setting)
