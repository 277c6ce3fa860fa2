"""The one way to start services and jobs on this machine: supervised processes with a common environment."""

import getpass
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from calopd.config import Config
from calopd.config.placement import Group
from calopd.config.visible_gpus import gpu_environment
from calopd.core.environment import TOKEN
from calopd.core.errors import QueueUnavailable
from calopd.doctor.model_jobs import LAUNCHER
from calopd.local import embedded_redis
from calopd.local.entry_point import INTERRUPTED_EXIT
from calopd.local.supervisor import Process, Supervisor
from calopd.rundir.files import write_text

POLL_SECONDS = 0.5
TEMPORARY_PREFIX = "calopd-"
TEMPORARY_NOTE = "temporary-folder"
"""Beside the logs: the temporary folder of the processes, so that it is found again if the launcher is killed."""


class Stopped(KeyboardInterrupt):
    """The user asked to stop, with Ctrl-C or SIGTERM."""


REPEAT = "repeat the command to resume"


@contextmanager
def resumable(how: str = REPEAT) -> Iterator[None]:
    """End a command whose services were stopped in the block, and say how to resume it."""
    try:
        yield
    except Stopped:
        print(f"stopped; {how}", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT)


class LocalServices:
    """Processes that live as long as the `with` block.

    The first Ctrl-C or SIGTERM raises `Stopped` and ends them cleanly, the second one kills them.
    """

    def __init__(self, logs: Path, models: Iterable[str]) -> None:
        self.supervisor = Supervisor()
        self._logs = logs
        self._environment = {
            TOKEN.name: os.environ.get(TOKEN.name) or secrets.token_urlsafe(24),
            "PYTHONUNBUFFERED": "1",
            # The processes share the cores: an idle thread must not spin on a core that another process needs.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        }
        if all(Path(model).is_dir() for model in models):
            self._environment["HF_HUB_OFFLINE"] = "1"
        self._asked_to_stop = False
        self.queue_url = ""
        """The Redis server of the processes, password included."""

    def __enter__(self) -> "LocalServices":
        # vLLM leaves folders behind in the temporary folder; what was compiled is worth keeping.
        self._temporary = self._new_temporary()
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"
        self._environment["TMPDIR"] = self._temporary
        self._environment.setdefault(
            "TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        )
        self._handlers = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _new_temporary(self) -> str:
        """A temporary folder; that of a launcher before this one, which was killed, is removed."""
        note = self._logs / TEMPORARY_NOTE
        if note.exists():
            earlier = Path(note.read_text(encoding="utf-8"))
            if earlier.name.startswith(TEMPORARY_PREFIX) and earlier.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(earlier, ignore_errors=True)
        temporary = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX)
        write_text(note, temporary)
        return temporary

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.supervisor.stop()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            shutil.rmtree(self._temporary, ignore_errors=True)
            (self._logs / TEMPORARY_NOTE).unlink(missing_ok=True)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._asked_to_stop:
            self.supervisor.kill()
            os._exit(INTERRUPTED_EXIT)
        self._asked_to_stop = True
        raise Stopped

    def watch(self, *processes: Process, poll_seconds: float = POLL_SECONDS) -> Iterator[list[str]]:
        """Supervise until all given processes have finished; yield the events of every poll."""
        while True:
            yield self.supervisor.check()
            if all(process.finished for process in processes):
                return
            time.sleep(poll_seconds)

    def start(
        self,
        name: str,
        module: str,
        *arguments: str,
        threads: int = 0,
        launcher: Iterable[str] = (),
        gpus: Iterable[int] = (),
        environment: Mapping[str, str] | None = None,
        restart: bool = True,
    ) -> Process:
        """Start `python -m module arguments`; `threads` = 0 leaves the number of OpenMP threads to the process.

        The process sees only `gpus`; with none it sees what its parent sees.
        """
        limits = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        process = Process(
            name=name,
            command=[sys.executable, *launcher, "-m", module, *arguments],
            log_file=self._logs / f"{name}.log",
            environment={**self._environment, **limits, **gpu_environment(gpus), **(environment or {})},
            restart=restart,
        )
        return self.supervisor.add(process)

    def start_replicas(self, module: str, *arguments: str, gpus: Sequence[Group]) -> list[Process]:
        """Start one process per entry of `gpus` that share a job; they share the CPU's threads, too."""
        threads, replicas = max(1, (os.cpu_count() or 1) // len(gpus)), len(gpus)
        return [
            self.start(
                f"replica-{replica}", module, *arguments, "--replica", str(replica), "--replicas", str(replicas),
                threads=threads, gpus=own, restart=False,
            )
            for replica, own in enumerate(gpus)
        ]  # fmt: skip

    def start_queue(self, config: Config, directory: Path) -> None:
        """Wait for the Redis server of the configuration, or start an embedded one with its data in `directory`."""
        url = config.queue.url
        if not url:
            password = secrets.token_urlsafe(24)
            url = embedded_redis.server_url(config.queue.port, password)
            command = embedded_redis.server_command(directory, config.queue.port, password)
            server = Process(name="redis", command=command, log_file=self._logs / "redis.log", ends_last=True)
            server.command += ["--pidfile", str(server.progress_file.resolve())]  # written when it has started
            self._start_embedded(server, directory, url)
        else:
            embedded_redis.wait_until_ready(url)
        self.queue_url = url
        self._environment["CALOPD__QUEUE__URL"] = url

    def _start_embedded(self, server: Process, directory: Path, url: str) -> None:
        """Start the embedded server. Data that it cannot read are moved aside: a run resumes without them."""
        said_before = server.log_file.stat().st_size if server.log_file.exists() else 0
        self.supervisor.add(server)
        try:
            embedded_redis.wait_until_ready(url, has_ended=lambda: server.has_ended)
        except QueueUnavailable:
            said = server.log_file.read_bytes()[said_before:].decode(errors="replace")
            if (aside := embedded_redis.move_damaged_data(directory, said)) is None:
                raise
            lost = "responses that are in no checkpoint are sampled again"
            print(f"the data of the queue are damaged and were moved to {aside}: {lost}", file=sys.stderr)
            server.start()
            embedded_redis.wait_until_ready(url, has_ended=lambda: server.has_ended)

    def start_scorer(
        self, config: Config, file: Path, *settings: str, name: str = "teacher", gpus: Iterable[int] = ()
    ) -> Process:
        """Start a scorer of the configuration in `file`, with some settings overridden."""
        arguments = _arguments(file, *settings)
        return self.start(name, "services.teacher_scorer", *arguments, threads=config.teacher.threads, gpus=gpus)

    def start_teachers(self, config: Config, file: Path) -> list[Process]:
        """Start the teacher replicas, each at its own ports and on its own GPUs; none if they run elsewhere."""
        if config.teacher.addresses:
            return []
        port, metrics = config.teacher.port, config.teacher.metrics_port
        names, gpus = replica_names("teacher", config.teacher.replicas), config.placement.teachers
        return [
            self.start_scorer(
                config, file, f"teacher.port={port + i}", f"teacher.metrics_port={metrics + i}",
                name=name, gpus=gpus[i] if gpus else (),
            )
            for i, name in enumerate(names)
        ]  # fmt: skip

    def start_rollouts(self, config: Config, file: Path) -> list[Process]:
        """Start the rollout replicas, each at its own port and on its own GPUs."""
        names, gpus = replica_names("rollout", config.rollout.replicas), config.placement.rollouts
        return [
            self.start(
                name, "services.rollout", *_arguments(file, f"rollout.port={config.rollout.port + i}"),
                threads=config.rollout.threads, gpus=gpus[i] if gpus else (),
            )
            for i, name in enumerate(names)
        ]  # fmt: skip

    def start_learner(self, config: Config, file: Path) -> Process:
        """Start the ranks of the learner; each takes the GPU of its local number."""
        launcher = ("-m", LAUNCHER, f"--nproc-per-node={config.learner.ranks}")
        return self.start(
            "learner",
            "services.learner",
            *_arguments(file),
            launcher=launcher,
            threads=config.learner.threads or 1,
            gpus=config.placement.learner,
        )


def _user() -> str:
    """The name of the user, or the number of one without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def replica_names(role: str, replicas: int) -> list[str]:
    """Names of the processes of a role: the role itself if there is only one."""
    return [role] if replicas == 1 else [f"{role}-{replica}" for replica in range(replicas)]


def _arguments(file: Path, *settings: str) -> list[str]:
    return ["--config", str(file), *(word for setting in settings for word in ("--set", setting))]
