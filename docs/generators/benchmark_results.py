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
            ("step_over_busiest_stale_1", "the same with staleness 1, at twice the time scale"),
            ("vs_phases", "the same engines in phases, over the strict step"),
            ("replica_scaling.2", "sampled tokens per second of 2 rollouts over twice those of one. Weak scaling: "
             "each has 128 responses, however many there are; the time scale is its own"),
            ("replica_scaling.4", "the same with 4 rollouts, over four times those of one"),
            ("step_over_plan.learner_bound", "measured step over the step that a plan at the same rates predicts"),
            ("step_over_plan.teacher_bound", "the same, teachers busiest"),
            ("step_over_plan.rollout_bound", "the same, rollouts busiest"),
        ),
    ),
    Benchmark(
        "learner",
        "The learner",
        "a learner step with the same model and tokens, against TRL's DistillationTrainer and full logits in torch. "
        "TRL pads a batch to its longest response and forms the divergence over the vocabulary; neither side "
        "recomputes activations. The gain over full logits shrinks with the hidden size: products "
        "dominate then. Our products are oneDNN's, those of the others MKL's, which use AVX-512 on Intel's processors "
        "only. This machine's is an AMD EPYC: on an Intel processor the gains are smaller (before we used oneDNN, "
        "`vs_trl` was 1.83, `vs_trl_equal_lengths` 0.90, `vs_full_49k` 1.24 and `vs_full_152k` 1.75).",
        (
            ("vs_trl", "tokens per CPU second, ours over TRL's, one context, the paper's lengths"),
            ("vs_trl_3_contexts", "the same, while our teacher scores three contexts and TRL's one"),
            ("vs_trl_equal_lengths", "one context, all responses of one length"),
            ("vs_trl_3_contexts_equal_lengths", "three contexts, all responses of one length"),
            ("vs_trl_3_contexts_equal_lengths_wall", "the same, wall time"),
            ("peak_mib_step.trl", "memory of TRL's step, MiB, the paper's lengths: its peak above what the process "
             "held before the step, which includes memory that it has kept of earlier steps"),
            ("peak_mib_step.1", "the same of ours, one context"),
            ("peak_mib_step_equal_lengths.trl", "of TRL's step, all responses of one length, after a step with the "
             "paper's lengths"),
            ("peak_mib_step_equal_lengths.1", "the same of ours, one context"),
            ("vs_full_49k", "the LM head alone, forward, backward and AdamW, against full logits: V = 49,152, "
             "hidden size 576"),
            ("vs_full_152k", "the same, V = 151,936, hidden size 128"),
            ("product_vs_torch", "one float32 product, ours over torch's: the part of the gain that depends on the "
             "processor"),
            ("peak_mib_512", "peak memory of the LM head alone above resting, 512 tokens, V = 151,936, MiB"),
            ("peak_mib_8192", "the same with 8,192 tokens"),
        ),
    ),
    Benchmark(
        "teacher",
        "The teacher",
        "three contexts of each response, against ways to score that people use. CPU seconds; `_wall` is wall time. "
        "vLLM multiplies with oneDNN on a CPU, as our torch engine does; transformers with MKL.",
        tuple(
            (f"{model}.{key}", f"{words}, {where}")
            for model, where in (("smollm2", "SmolLM2-135M"), ("qwen3_vocab", "two layers with Qwen3's vocabulary"))
            for key, words in (
                ("vs_vllm_16", "against vLLM with `prompt_logprobs=16`"),
                ("vs_vllm_16_wall", "the same, wall time"),
                ("vs_vllm_16_of_our_vllm_engine", "our vLLM engine (`teacher.engine`) against the same"),
                ("vs_vllm_16_of_our_vllm_engine_wall", "the same, wall time"),
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
            ("after.bytes", "the same as it is now, whole; changes are smaller"),
            ("deltas.0.bytes_ratio", "bytes of a whole policy over those of its changes, 20 steps at "
             "learning rate 1e-6"),
            ("deltas.0.changed_share.median", "share of the bfloat16 values that a step changes"),
            ("deltas.0.delta.seconds.publish", "seconds to find, compress and write the changes"),
            ("deltas.0.whole.seconds.publish", "seconds to write a whole policy"),
            ("deltas.0.delta.seconds.verify and apply", "seconds to verify and apply changes on this host, where a "
             "whole policy is only read: changes pay across a network"),
            ("deltas.0.whole.seconds.verify and apply", "the same of a whole policy"),
            ("deltas.1.bytes_ratio", "as the first, from weights between bfloat16 values, as they are in the middle "
             "of a training run"),
            ("deltas.1.changed_share.first", "share of the values that the first of these steps changes, whose update "
             "is the largest"),
            ("deltas.1.changed_share.median", "the same of the median step"),
            ("deltas.2.bytes_ratio", "as the first, at learning rate 1e-5"),
            ("deltas.2.changed_share.median", "as above, at learning rate 1e-5"),
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
