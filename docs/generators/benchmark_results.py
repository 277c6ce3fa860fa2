"""The figures of benchmarks/results that docs/performance.md shows, and their definitions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    """Of benchmarks/results/NAME.json and `make bench-NAME`."""
    title: str
    about: str
    figures: tuple[tuple[str, str], ...]
    """Dotted key in the file, definition."""


FIGURES = (
    Benchmark(
        "pipeline",
        "The pipeline",
        "real services, queue and protocol; engines are emulated: they take the time that a plan predicts for GPUs, "
        "scaled, and return data of the right shape.",
        (
            ("step_over_busiest.learner_bound", "wall time of a strict step over the busy time of its busiest role; 1 "
             "is the least; a split in which the learner is busiest"),
            ("step_over_busiest.teacher_bound", "the same, teachers busiest"),
            ("step_over_busiest.rollout_bound", "the same, rollouts busiest"),
            ("step_over_busiest_stale_1", "the same with staleness 1"),
            ("vs_phases", "the same engines in phases, over the strict step"),
            ("replica_scaling.2", "speed-up of 2 rollouts over 1, divided by 2"),
            ("replica_scaling.4", "speed-up of 4 rollouts over 1, divided by 4"),
            ("step_over_plan.learner_bound", "measured step over the step that a plan at the same rates predicts"),
            ("step_over_plan.teacher_bound", "the same, teachers busiest"),
            ("step_over_plan.rollout_bound", "the same, rollouts busiest"),
        ),
    ),
    Benchmark(
        "learner",
        "The learner",
        "a learner step with the same model and tokens, against TRL's DistillationTrainer and full logits in torch.",
        (
            ("vs_trl", "tokens per CPU second, ours over TRL's, one context, without generation"),
            ("vs_trl_3_contexts", "the same, while our teacher scores three contexts and TRL's one"),
            ("vs_full_49k", "against full logits at V = 49,152"),
            ("vs_full_152k", "against full logits at V = 151,936"),
            ("peak_mib_512", "peak memory above resting with 512 tokens, MiB"),
            ("peak_mib_8192", "the same with 8,192 tokens"),
        ),
    ),
    Benchmark(
        "teacher",
        "The teacher",
        "three contexts of each response, against ways to score that people use. CPU seconds; `_wall` is wall time.",
        tuple(
            (f"{model}.{key}", f"{words}, {where}")
            for model, where in (("smollm2", "SmolLM2-135M"), ("qwen3_vocab", "two layers with Qwen3's vocabulary"))
            for key, words in (
                ("vs_vllm_16", "against vLLM with `prompt_logprobs=16`"),
                ("vs_vllm_16_wall", "the same, wall time"),
                ("vs_naive", "against transformers, one sequence at a time with full logits"),
            )
        ),
    ),
    Benchmark(
        "policies",
        "Publishing a policy",
        "from the optimizer step to the tickets of the next step and to a loaded policy.",
        (
            ("before.seconds_until_tickets", "seconds until the tickets are issued, checkpoint first and in float32"),
            ("after.seconds_until_tickets", "the same as it is now: policy first, in the rollout's data type"),
            ("before.bytes", "bytes that are written in a step"),
            ("after.bytes", "the same as it is now"),
        ),
    ),
    Benchmark(
        "packing",
        "Packed sequences",
        "a learner step on sequences without padding, against micro-batches padded to their longest one.",
        (
            ("step.packed_vs_padded", "CPU seconds, padded over packed"),
            ("step.gradient_difference", "relative difference of the two gradients; 0 is the least"),
        ),
    ),
    Benchmark(
        "tsd",
        "Analysis of a study",
        "`calopd tsd analyze` on 60 M tokens under nine contexts.",
        (
            ("times_cpu_of_pyarrow_alone", "CPU seconds over those of reading the files with pyarrow; 1 is the least"),
            ("times_pyarrow_alone", "the same, wall time"),
            ("peak_mebibytes", "peak memory, MiB"),
        ),
    ),
)  # fmt: skip
