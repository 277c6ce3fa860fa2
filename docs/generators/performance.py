"""docs/performance.md: the plan of the paper's pairs, what it rests on, and what was measured."""

import functools
import json
from pathlib import Path
from typing import Any

from calopd.config import load_config
from calopd.planning.gpus import GPUS
from calopd.planning.plan_tables import Plan, assumptions
from calopd.planning.splits import plan_splits
from docs.generators.benchmark_results import FIGURES, Benchmark
from docs.generators.markdown import code, table

ROOT = Path(__file__).parents[2]
PAIRS = ("qwen3-4b-to-1.7b", "qwen3-30b-to-4b", "qwen3-30b-to-8b")
PLANNED = ("h20", "h100")
COUNT = 8

INTRODUCTION = """\
# Performance

<!-- Generated from the code and from benchmarks/results by `make docs`. Do not edit. -->

## Predicted: a step of the paper's pairs

**Computed, not measured: nobody has run these recipes on GPUs yet.** `calopd plan CONFIG --gpu h100 --count 8`
computes the same for any configuration; with `--price` it shows the cost of a run, with `--measure` it measures
the rates of the machine at hand instead of assuming them, and with `--lengths RUN` it takes the lengths of the
responses from a run instead of from the paper. Minutes of a step of Cal-OPD with three contexts, on 8
GPUs, for the fastest split of them that fits:
"""

COLUMNS = """\
- *Strict* is strictly on-policy: the next step begins when the rollouts have loaded the new policy. *Staleness 1*:
  the rollouts sample a step while the learner learns from the one before it (`run.max_staleness = 1`), in the long
  run. A rollout completes its running responses before it loads a policy, so staleness 1 gains little where sampling
  takes longest.
- *Busy* is the busiest process of each role in a strict step. *In phases*: the same GPUs and rates, but all responses
  first, then all scores, then all gradients.
- *As shipped* is the split in `[resources]` of the recipe and its strict step. The recipes keep two teachers, so that
  a run goes on while one of them is restarted, and two learner ranks or more. That costs time where the fastest split
  has one teacher or one rank; `calopd plan` prints the fastest one as a `[resources]` section to copy.
- *The paper* reports minutes per step on 8 H20, 4 of them for the teacher. They are its own system with its own
  lengths: the table says what our design should reach, not that the paper's numbers are wrong.
"""

BASIS = """\
### What the figures rest on

A roofline. Sampling a token reads the weights and the KV cache once; the time is bytes over the reached bandwidth, or
FLOPs over the reached FLOP/s if that is longer. If the KV cache is full, the newest response is preempted and
computed again, as vLLM does. Scoring and learning are FLOPs over the reached FLOP/s: 2 per parameter and token,
attention with its square, four forward passes for learning (forward, backward twice, recomputation). Settings change
that: with LoRA frozen weights have no gradients, activations may be stored instead of recomputed, and ExOPD adds a
forward pass of the initial student. Token-Sync and Uni-OPD plan a whole step: they learn after its last trajectory has
arrived, and Uni-OPD reads the student once more for it. 256 responses are drawn from the length distribution, and
rollouts, teachers and ranks are simulated as queues. Memory is that of [sizing.md](sizing.md).
"""

GPU_TABLE = """\
Peaks of the GPUs, from NVIDIA's data sheets (dense bf16, SXM versions of A100, H100, H200 and B200; for H20, which
has no public one, the figures that resellers agree on):
"""

TRACE = """\
## Seeing it: the trace of a run

`calopd run CONFIG --trace` writes `trace.json.gz` into the run's directory: what every process did when. Open it at
[ui.perfetto.dev](https://ui.perfetto.dev) or in `chrome://tracing`. After a crash, `calopd report DIR` merges what
the processes have written so far.

![Trace of a run: responses are sampled, scored and learned from at the same time](images/trace.png)

Three steps of the demo's models with two rollouts, a teacher and a learner of one rank on two busy CPU cores, in
Perfetto. The teacher scores and the learner learns while the rollouts still sample; the rollouts wait only from their
last response of a step to the next policy.

- A rollout has a row per response while it is sampled (`sample`) and while its scores are outstanding (`wait for
  scores`). Its thread shows when the engine has nothing to do (`wait`) and loads a policy.
- A teacher has its batches (`score batch`), each rank of the learner its micro-batches (`learn`), `optimizer step`,
  `publish policy`, `checkpoint: copy`, and in a thread of its own `checkpoint: write`.
- Times are the wall clock of each host. Rows of one host are exact; those of several hosts are as far apart as their
  clocks, a few milliseconds with NTP.
- A process writes at most 500,000 spans (about 60 MB). Without `--trace` nothing is written.

[metrics.md](metrics.md) defines the busy, waiting and idle seconds of every role, which each step records with or
without a trace.
"""

MEASURED = """\
## Measured

By the benchmarks in `benchmarks/`, on a machine with 2 CPU cores and no GPU. Ratios are of both sides in the same
run; above 1, ours is better, unless the definition says otherwise.
"""


def page() -> str:
    return "\n".join(
        (
            INTRODUCTION, predicted(), COLUMNS, BASIS, assumed(), GPU_TABLE, gpus(), TRACE, MEASURED,
            *(measured(benchmark) for benchmark in FIGURES),
        )
    )  # fmt: skip


@functools.cache
def predicted() -> str:
    rows = []
    for gpu in (GPUS[name] for name in PLANNED):
        for name in PAIRS:
            config = load_config(ROOT / "configs" / f"{name}.toml", environ={})
            plan = Plan(config=config, gpu=gpu, splits=plan_splits(config, gpu, COUNT))
            best = plan.best
            busy = (best.strict.teacher, best.strict.rollout, best.strict.learner)
            rows.append(
                (
                    code(name),
                    f"{COUNT} x {gpu.name}",
                    f"{best.teacher} / {best.rollout} / {best.learner}",
                    f"**{best.strict.step / 60:.1f}**",
                    " / ".join(f"{seconds / 60:.1f}" for seconds in busy),
                    f"{best.stale.step / 60:.1f}",
                    f"{best.phases / 60:.1f}",
                    f"{plan.paper:.1f}" if plan.paper and gpu.name == "h20" else "",
                    f"{plan.run_hours:.0f}",
                    _recipe(plan),
                )
            )
    header = (
        "Recipe", "GPUs", "Teacher / rollout / learner", "Strict", "Busy t / r / l", "Staleness 1", "In phases",
        "The paper", "Hours for 100 steps", "As shipped",
    )  # fmt: skip
    return table(header, rows)


def _recipe(plan: Plan) -> str:
    """The split that the recipe ships with, and its minutes, on the GPU that it is written for."""
    if plan.config.resources.gpu != plan.gpu.name:
        return ""
    config = plan.config
    shipped = config.resources.teacher, config.resources.rollout, config.resources.learner
    (split,) = (split for split in plan.splits if (split.teacher, split.rollout, split.learner) == shipped)
    return f"{split.teacher} / {split.rollout} / {split.learner}: {split.strict.step / 60:.1f}"


def assumed() -> str:
    return table(("Assumption", "Value", "Source"), assumptions())


def gpus() -> str:
    rows = [
        (code(g.name), f"{g.memory_gib} GiB", f"{g.bandwidth_gb:,.0f} GB/s", f"{g.tflops:,.0f}") for g in GPUS.values()
    ]
    return table(("GPU", "Memory that CUDA reports", "Bandwidth", "TFLOP/s"), rows)


def measured(benchmark: Benchmark) -> str:
    file = ROOT / "benchmarks" / "results" / f"{benchmark.name}.json"
    heading = f"### {benchmark.title}\n\n`make bench-{benchmark.name}`: {benchmark.about}\n\n"
    if not file.is_file():
        return heading + "Not measured yet.\n"
    results = json.loads(file.read_text(encoding="utf-8"))
    rows = [(code(key), _shown(value), meaning) for key, meaning in benchmark.figures for value in _found(results, key)]
    return heading + table(("Figure", "Value", "Definition"), rows)


def _found(results: Any, key: str) -> list[Any]:
    """The value at a dotted key; none if it was not measured."""
    for part in key.split("."):
        if isinstance(results, list):
            results = dict(zip(map(str, range(len(results))), results, strict=True))
        if not isinstance(results, dict) or part not in results:
            return []
        results = results[part]
    return [results]


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
