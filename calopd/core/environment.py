"""Environment variables that the services read, with their meanings. docs/configuration.md lists them from here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable."""

    name: str
    meaning: str
    default: str = ""


TOKEN = Variable(
    "CALOPD_TOKEN",
    "Token that every gRPC call and `POST /v1/generate` must carry. The same in all services. "
    "`calopd run` generates one if it is not set.",
)
HOST = Variable(
    "CALOPD_HOST",
    "Address that services listen on. Any address but a loopback one needs `CALOPD_TOKEN`.",
    default="127.0.0.1",
)
TLS_CA = Variable(
    "CALOPD_TLS_CA",
    "File with the certificate of the authority (PEM). Turns on mutual TLS between rollouts and teacher; needs the "
    "two below.",
)
TLS_CERT = Variable("CALOPD_TLS_CERT", "File with the certificate of this service (PEM).")
TLS_KEY = Variable("CALOPD_TLS_KEY", "File with the private key of this service (PEM).")
WORKER = Variable(
    "CALOPD_WORKER",
    "Name of a rollout replica in the queue; it must be unique. Default: host name and port.",
)
DIE_WITH_PARENT = Variable(
    "CALOPD_DIE_WITH_PARENT",
    "Set by `calopd run` for the processes that it starts: they end when it ends.",
)

ERROR_FILE = Variable(
    "CALOPD_ERROR_FILE",
    "Set by `calopd run` for the processes that it starts: the file for the message of an error that a user can fix.",
)
RANK_STORE = Variable(
    "CALOPD_RANK_STORE",
    "Set by the launcher of the learner for the ranks of one host: the file in which they find one another.",
)

PROGRESS_FILE = Variable(
    "CALOPD_PROGRESS_FILE",
    "Set by `calopd run` for the processes that it starts: the file that a process creates once it has done some work.",
)

VARIABLES = (TOKEN, HOST, TLS_CA, TLS_CERT, TLS_KEY, WORKER, DIE_WITH_PARENT, ERROR_FILE, PROGRESS_FILE, RANK_STORE)

OTHER_VARIABLES = (
    Variable("HF_HOME", "Cache of models and data sets from the Hugging Face hub.", default="~/.cache/huggingface"),
    Variable("HF_TOKEN", "Login for models on the hub that require one. Read by `calopd download`."),
    Variable("HF_HUB_OFFLINE", "`1` = never contact the hub; models must be in the cache."),
    Variable("CUDA_VISIBLE_DEVICES", "GPUs that a process may use."),
    Variable("OMP_NUM_THREADS", "CPU threads of OpenMP; taken from the `threads` settings if it is not set."),
    Variable("WANDB_API_KEY", 'Login of Weights & Biases, for `tracking.mode = "online"`.'),
)
"""Variables of other libraries that matter here."""
