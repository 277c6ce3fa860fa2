"""[evaluation]"""

from pydantic import Field

from calopd.config.sections.base import Section
from calopd.core.types import Sampling


class EvaluationSection(Section):
    problems: int = Field(default=0, ge=0)
    """Held-out problems answered by the first and the last policy, and by every `every`-th; 0 = no evaluation."""
    every: int = Field(default=0, ge=0)
    """Steps between two evaluated policies, answered while the replicas are idle; 0 = the first and the last only."""
    samples: int = Field(default=1, ge=1)
    temperature: float = Field(default=0.6, gt=0)
    top_p: float = Field(default=0.95, gt=0, le=1)
    max_tokens: int = Field(default=20_480, ge=1)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.max_tokens)
