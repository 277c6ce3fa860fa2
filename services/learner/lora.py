"""LoRA: adapters injected into the student, and disabled for the reference."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from calopd.config.sections import LearnerSection
from calopd.core.errors import ConfigError
from calopd.models.adapters import ADAPTER


def add_adapters(lm: nn.Module, settings: LearnerSection) -> None:
    """Freeze the model and inject trainable adapters into its linear layers."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = settings.lora_targets if settings.lora_targets == "all-linear" else list(settings.lora_targets)
    config = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules=targets, lora_dropout=0.0)
    try:
        inject_adapter_in_model(config, lm, adapter_name=ADAPTER)
    except ValueError as error:
        raise ConfigError(f"learner.lora_targets = {settings.lora_targets}: {str(error).splitlines()[0]}") from None
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # peft gives it the data type of the frozen weight


@contextmanager
def adapters_disabled(model: nn.Module) -> Iterator[None]:
    """The model as before training. Sets a flag only: peft's own switch changes requires_grad, which FSDP relies on."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
