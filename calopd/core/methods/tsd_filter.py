"""TSD-Filter, a control: OPD on the tokens whose self-deviation is small, max(|D+|, |D-|) <= tau."""

from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return opd_advantage(tokens)


def mask(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    """A dropped token leaves the mask and the denominator."""
    return (tokens.probe_logprobs - tokens.teacher_logprobs).abs().amax(0) <= settings.deviation_threshold


METHOD = Method(name="tsd_filter", advantage=advantage, uses_probes=True, mask=mask)
