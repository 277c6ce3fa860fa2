"""`calopd tsd analyze`: one streaming pass over the shards, in as many processes as there are cores.

Memory is that of the sums and of one row group a process, however many shards there are. The sums are exact, so that
neither the number of processes nor the cut into shards changes a digit.
"""

import ctypes
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from calopd.core.contexts import BASE
from calopd.core.errors import CalopdError, ConfigError
from calopd.core.tsd.deviation_sums import TAUS, Plan, StudySums, TokenColumns
from calopd.core.tsd.relaxation import RESOLUTION
from calopd.core.tsd.summary import FORM_SHARE, Overview, summarise
from calopd.core.tsd.token_forms import form_table
from calopd.rundir.files import write_json
from calopd.study.csv_tables import write_tables
from calopd.study.shards import Study, row_groups

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
FORM_LIMIT = 20_000
CHUNK = 2**19
WORTH_PROCESSES = 2**26
"""Bytes below which a second process would take longer to start than it saves."""


def analyze(
    directory: Path,
    *,
    taus: Sequence[float] = TAUS,
    min_count: int | None = None,
    unions: Sequence[Sequence[str]] = (),
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure a study and write analysis.json and its tables; min_count None = the paper's share of the tokens."""
    study = Study(directory)
    shards = study.shards
    if not shards:
        raise ConfigError(f"{directory} has no shards yet: collect some tokens first")
    try:
        plan = Plan.of(study.contexts[1:], taus, unions)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    overview = _overview(study)
    texts = study.token_texts()
    sums = _measure(shards, plan, len(texts), processes or len(os.sched_getaffinity(0)), progress)
    limit = min(FORM_LIMIT, sums.tokens // FORM_SHARE) if min_count is None else min_count
    table = form_table(texts, sums.count_V, sums.form_count_CVK, sums.form_size_CVK / float(RESOLUTION))
    analysis = {"study": study.facts} | summarise(sums, overview, table, limit)
    write_json(directory / "analysis.json", analysis)
    write_tables(directory / "tables", analysis, table.over(limit))
    return analysis


def read_analysis(directory: Path) -> dict[str, Any]:
    file = directory / "analysis.json"
    if not file.exists():
        raise ConfigError(f"no analysis.json in {directory}: run `calopd tsd analyze {directory}` first")
    analysis: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return analysis


def _overview(study: Study) -> Overview:
    """Counts of rollouts; each index once, or the study is refused."""
    seen: dict[int, Path] = {}
    lengths, judged, correct, truncated = [], 0, 0, 0
    for shard, _, rollout in study.rollouts():
        if rollout.index in seen:
            raise ConfigError(
                f"rollout {rollout.index} stands in {seen[rollout.index]} and {shard}: remove one of them"
            )
        seen[rollout.index] = shard
        lengths.append(rollout.tokens)
        judged += rollout.correct is not None
        correct += bool(rollout.correct)
        truncated += rollout.truncated
    return Overview(sorted(lengths), judged, correct, truncated)


def _measure(
    shards: list[Path], plan: Plan, vocabulary_size: int, processes: int, progress: Callable[[int, int], None]
) -> StudySums:
    """A process a core, each with a fair share of the shards: numpy's counting holds the interpreter's lock."""
    sizes = {shard: shard.stat().st_size for shard in shards}
    done, total = 0, sum(sizes.values())

    def read(shard: Path) -> None:
        nonlocal done
        done += sizes[shard]
        progress(done, total)

    shares: list[list[Path]] = [[] for _ in range(min(processes, len(shards)))]
    for shard in sorted(shards, key=lambda shard: (-sizes[shard], shard)):
        min(shares, key=lambda share: sum(sizes[part] for part in share)).append(shard)
    if len(shares) == 1 or total < WORTH_PROCESSES:
        return _sums(shards, plan, vocabulary_size, read)
    sums = StudySums(plan, vocabulary_size)
    context = multiprocessing.get_context("spawn")
    pipes: list[Any] = []
    workers = []
    for share in shares:
        ours, theirs = context.Pipe(duplex=False)
        workers.append(context.Process(target=_work, args=(share, plan, vocabulary_size, theirs), daemon=True))
        workers[-1].start()
        theirs.close()
        pipes.append(ours)
    while pipes:
        ready: list[Any] = wait(pipes)
        for pipe in ready:
            said = pipe.recv()
            if isinstance(said, Path):
                read(said)
                continue
            pipes.remove(pipe)
            if isinstance(said, CalopdError):
                raise said
            sums.merge(said)
    for worker in workers:
        worker.join()
    return sums


def _work(shards: list[Path], plan: Plan, vocabulary_size: int, pipe: "Connection[Any, Any]") -> None:
    """What a process does: tells of every shard that it has read, gives its sums at the end."""
    _keep_freed_memory()
    try:
        pipe.send(_sums(shards, plan, vocabulary_size, pipe.send))
    except CalopdError as error:
        pipe.send(error)


def _sums(shards: list[Path], plan: Plan, vocabulary_size: int, read: Callable[[Path], None]) -> StudySums:
    """Sums over shards, in chunks of so many tokens that to add up the counters of a whole vocabulary weighs little."""
    sums = StudySums(plan, vocabulary_size)
    waiting: list[TokenColumns] = []
    for shard in shards:
        for ids, student, (base, *probes) in row_groups(shard, (BASE, *plan.contexts)):
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary_size:
                raise ConfigError(f"{shard} holds token ids that tokens.json ({vocabulary_size} ids) does not know")
            waiting.append(TokenColumns(ids, student, base, probes))
            if sum(len(part.ids) for part in waiting) >= CHUNK:
                sums.add(TokenColumns.joined(waiting))
                waiting = []
        read(shard)
    if waiting:
        sums.add(TokenColumns.joined(waiting))
    return sums


def _keep_freed_memory() -> None:
    """Freed arrays stay with the process (glibc): faulting their pages in anew would cost more than the arithmetic."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
