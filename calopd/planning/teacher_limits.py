"""The teacher's vLLM engine: its work, and the size of its KV cache beside other roles."""

from dataclasses import replace

from calopd.config import Config
from calopd.config.sections import TeacherSection
from calopd.planning.inference_memory import VLLM_SEQUENCES, EngineWork
from calopd.planning.model_shapes import QUANTISED_BITS, ModelShape, load_shape
from calopd.planning.shared_cache import shared_cache_gib


def teacher_shape(config: Config) -> ModelShape | None:
    """The teacher as it is loaded, quantised if the settings ask for it."""
    shape, quantization = load_shape(config.teacher.path), config.teacher.quantization
    return replace(shape, weight_bits=QUANTISED_BITS.get(quantization, 8)) if shape and quantization else shape


def teacher_work(config: Config) -> EngineWork:
    """The configuration of the teacher's vLLM engine."""
    teacher = config.teacher
    return EngineWork(
        gpus=teacher.tensor_parallel_size,
        tokens=teacher.batch_tokens,
        longest=teacher.max_tokens,
        logits_rows=VLLM_SEQUENCES,
    )


def limited_teacher(config: Config) -> TeacherSection:
    """The section [teacher] with the size of its KV cache filled in."""
    teacher = config.teacher
    if teacher.engine != "vllm" or teacher.kv_cache_gib:
        return teacher
    size = shared_cache_gib(
        config,
        "teacher",
        teacher_shape(config),
        teacher_work(config),
        dtype=teacher.dtype,
        share=teacher.gpu_memory_utilization,
    )
    return teacher.model_copy(update={"kv_cache_gib": size})
