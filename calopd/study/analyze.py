"""`calopd tsd analyze`: one streaming pass over the shards, with one thread per core.

Each thread holds its sums and one row group of tokens, for any number of shards. The sums are exact, so the results do
not depend on the number of threads or on the split into shards.
"""

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError
from calopd.core.tsd.deviation_sums import TAUS, StudyPlan, StudySums, TokenColumns
from calopd.core.tsd.noise import noise_summary
from calopd.core.tsd.relaxation import RESOLUTION
from calopd.core.tsd.summary import FORM_SHARE, Overview, summarise
from calopd.core.tsd.token_forms import form_table
from calopd.rundir.files import read_lines, write_json
from calopd.study.csv_tables import write_tables
from calopd.study.layout import StudyDir
from calopd.study.shards import Study, row_groups

FORM_LIMIT = 20_000


def analyze(
    directory: Path,
    *,
    taus: Sequence[float] = TAUS,
    min_count: int | None = None,
    unions: Sequence[Sequence[str]] = (),
    threads: int | None = None,
    blank_forms: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure a study and write analysis.json and the tables.

    Forms with more than `min_count` occurrences are listed; None scales the paper's limit to the size of the study.
    Blank forms are listed only with `blank_forms`.
    """
    study = Study(directory)
    shards = study.shards
    if not shards:
        raise ConfigError(f"{directory} has no shards: run `calopd tsd collect` first")
    try:
        plan = StudyPlan.of(study.contexts[1:], taus, unions)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    overview = _overview(study)
    texts = study.token_texts()
    sums = _measure(shards, plan, len(texts), threads or len(os.sched_getaffinity(0)), progress)
    limit = min(FORM_LIMIT, sums.tokens // FORM_SHARE) if min_count is None else min_count
    table = form_table(texts, sums.count_V, sums.form_count_CVK, sums.form_size_CVK / float(RESOLUTION))
    frequent = table.over(limit, blanks=blank_forms)
    analysis = {"study": study.facts} | summarise(sums, overview, table, frequent, limit)
    repeated = {row["index"]: row for file in study.files.noise_files for row in read_lines(file)}
    analysis["noise"] = noise_summary(repeated.values(), taus)
    write_json(study.files.analysis, analysis)
    write_tables(study.files.tables, analysis, frequent)
    return analysis


def read_analysis(directory: Path) -> dict[str, Any]:
    """The analysis of a study; one of fewer rollouts than there are now is refused."""
    study, file = Study(directory), StudyDir(directory).analysis
    _ = study.facts  # an error if there is no study
    if not file.exists():
        raise ConfigError(f"no {file.name} in {directory}: run `calopd tsd analyze {directory}` first")
    analysis: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    analysed, collected = analysis["rollouts"], sum(1 for _ in study.rollouts())
    if analysed != collected:
        raise ConfigError(
            f"{file} is about {analysed} rollouts, but {collected} are collected: run `calopd tsd analyze {directory}` "
            "again"
        )
    return analysis


def _overview(study: Study) -> Overview:
    """Counts over the rollouts; a duplicate index is an error."""
    seen: dict[int, Path] = {}
    lengths, judged, correct, truncated = [], 0, 0, 0
    for shard, _, rollout in study.rollouts():
        if rollout.index in seen:
            raise ConfigError(
                f"rollout {rollout.index} is in both {seen[rollout.index]} and {shard}: remove one of the shards"
            )
        seen[rollout.index] = shard
        lengths.append(rollout.tokens)
        judged += rollout.correct is not None
        correct += bool(rollout.correct)
        truncated += rollout.truncated
    return Overview(sorted(lengths), judged, correct, truncated)


def _measure(
    shards: list[Path], plan: StudyPlan, vocabulary_size: int, threads: int, progress: Callable[[int, int], None]
) -> StudySums:
    """Sums over all shards, split evenly over threads: reading and the compiled pass leave the interpreter free."""
    sizes = {shard: shard.stat().st_size for shard in shards}
    done, total, lock = 0, sum(sizes.values()), Lock()

    def read(shard: Path) -> None:
        nonlocal done
        with lock:
            done += sizes[shard]
            progress(done, total)

    shares: list[list[Path]] = [[] for _ in range(min(threads, len(shards)))]
    for shard in sorted(shards, key=lambda shard: (-sizes[shard], shard)):
        min(shares, key=lambda share: sum(sizes[part] for part in share)).append(shard)
    with ThreadPoolExecutor(len(shares)) as pool:
        sums, *others = pool.map(lambda share: _sums(share, plan, vocabulary_size, read), shares)
    for other in others:
        sums.merge(other)
    return sums


def _sums(shards: list[Path], plan: StudyPlan, vocabulary_size: int, read: Callable[[Path], None]) -> StudySums:
    sums = StudySums(plan, vocabulary_size)
    for shard in shards:
        for ids, student, (base, *probes) in row_groups(shard, (BASE, *plan.contexts)):
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary_size:
                raise ConfigError(f"{shard} contains token ids outside the {vocabulary_size} ids of tokens.json")
            sums.add(TokenColumns(ids, student, base, probes))
        read(shard)
    return sums
