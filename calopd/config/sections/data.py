"""[data]"""

from pathlib import Path

from pydantic import Field

from calopd.config.sections.base import Section


class DataSection(Section):
    train: Path
    heldout: Path | None = None
    max_prompt_tokens: int = Field(default=2_048, ge=1)
    max_context_tokens: int = Field(default=12_288, ge=1)
    """Limit of the teacher's prompts, which carry an intervention; a longer solution in one loses its beginning."""
