"""The sampling parameters as keys of a section."""

from dataclasses import asdict

from pydantic import Field, ValidationError

from calopd.config.explain import expectation
from calopd.config.sections.base import Fixed, Section
from calopd.core.errors import ConfigError
from calopd.core.options import Sampling


class SamplingKeys(Section):
    """One key per parameter of `Sampling`. Sections with other defaults declare the key again."""

    temperature: Fixed[float] = Field(default=1.0, gt=0)
    """Sampling temperature; 1 = the student's own distribution."""
    top_p: Fixed[float] = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability; 1 = from all tokens."""
    max_tokens: Fixed[int] = Field(default=16_384, ge=1)
    """Maximum length of a response, in tokens. A longer one is cut and still used."""

    @property
    def sampling(self) -> Sampling:
        return Sampling.of(self)


class GreedySamplingKeys(SamplingKeys):
    """Sampling that measures a model and need not follow its distribution."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 = always the most likely token."""


def sampling_of(arguments: object) -> Sampling:
    """The sampling parameters of a command's arguments; the limits are those of the configuration."""
    try:
        return GreedySamplingKeys.model_validate(asdict(Sampling.of(arguments))).sampling
    except ValidationError as error:
        problems = (f"--{str(e['loc'][0]).replace('_', '-')}: {expectation(e)}" for e in error.errors())
        raise ConfigError("; ".join(problems)) from None
