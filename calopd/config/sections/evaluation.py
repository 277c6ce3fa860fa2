"""[evaluation]: held-out accuracy during the run."""

from pydantic import Field

from calopd.config.sections.sampling import SamplingKeys
from calopd.core.options import PAPER_EVALUATION


class EvaluationSection(SamplingKeys):
    """Held-out accuracy of some of the run's policies."""

    problems: int = Field(default=0, ge=0)
    """Number of held-out problems that an evaluated policy answers; 0 = no evaluation. Needs `data.heldout`."""
    every: int = Field(default=0, ge=0)
    """Steps between two evaluated policies; 0 = only the first and the last one. Rollouts answer when they are idle."""
    samples: int = Field(default=1, ge=1)
    """Responses per problem; accuracy is the mean over all of them. Raise it for less noise."""
    temperature: float = Field(default=PAPER_EVALUATION.temperature, ge=0)
    """Sampling temperature of the evaluation; 0 = always the most likely token."""
    top_p: float = Field(default=PAPER_EVALUATION.top_p, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; 1 = from all tokens."""
    max_tokens: int = Field(default=PAPER_EVALUATION.max_tokens, ge=1)
    """Maximum length of a response, in tokens. A longer one is cut and usually counts as wrong."""
