"""TSD-Filter, a control: OPD on the tokens whose self-deviation is small, max(|D+|, |D-|) <= tau."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, ProbeSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TSDFilterSettings(ProbeSettings):
    deviation_threshold: float = 0.1
    """Tau in nats: a token that deviates further leaves the loss. `relaxation` affects only the metrics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("deviation_threshold", self.deviation_threshold >= 0, "at least 0")


def advantage(tokens: TokenBatch, settings: TSDFilterSettings) -> Tensor:
    return opd_advantage(tokens)


def mask(tokens: TokenBatch, settings: TSDFilterSettings) -> Tensor:
    """Tokens to keep; a dropped token leaves the mask and the denominator."""
    return (tokens.probe_logprobs - tokens.teacher_logprobs).abs().amax(0) <= settings.deviation_threshold


METHOD = Method(name="tsd_filter", settings=TSDFilterSettings, advantage=advantage, mask=mask)
