"""[emulation]: GPUs that are not there, for engines with a clock."""

from pydantic import Field

from calopd.config.sections.base import Section


class EmulationSection(Section):
    """The GPUs of engines that are `"emulated"`: they take the time that `calopd plan` predicts for a GPU and compute
    nothing, so that the services, the queue and the protocols of a large run can be measured on a small machine. An
    emulated run trains no model, and says so wherever it is shown. It needs the config.json and the tokenizer of both
    models, but no weights."""

    gpu: str = ""
    """The GPU that every process pretends to have, such as `"h100"`; empty = `resources.gpu`."""
    time_scale: float = Field(default=1.0, ge=0)
    """Seconds that pass for each second of the emulated GPU: 0.05 turns a minute into 3 seconds; 0 = no time passes."""
    response_tokens: int = Field(default=0, ge=0)
    """Length of every response; 0 = lengths as the paper's: mean 9,270, median 7,758, cut at `rollout.max_tokens`."""
    phases: bool = False
    """Emulate a system that samples all responses of a step, then scores them all, then learns from them all."""
