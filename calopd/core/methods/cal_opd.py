"""Cal-OPD: only what lies beyond the teacher's self-deviation, A = [L - lS]_+ - [lS - U]_+ (the paper's section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calopd.core.calibration import calibrated_advantage, tsd_region
from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, ProbeSettings

if TYPE_CHECKING:
    from torch import Tensor


def advantage(tokens: TokenBatch, settings: ProbeSettings) -> Tensor:
    region = tsd_region(tokens.teacher_logprobs, tokens.probe_logprobs, settings.relaxation)
    return calibrated_advantage(region, tokens.student_logprobs)


METHOD = Method(name="cal_opd", settings=ProbeSettings, advantage=advantage)
