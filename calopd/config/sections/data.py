"""[data]: the problems, and how long their prompts may be."""

from pathlib import Path

from pydantic import Field

from calopd.config.sections.base import Section


class DataSection(Section):
    """Problem files and limits of prompt lengths."""

    train: Path
    """Training problems: a JSONL file with one `{id, problem, answer, solution?}` per line, as written by
    `calopd data prepare`."""
    heldout: Path | None = None
    """Held-out problems for evaluations during the run, in the same format; unset = none."""
    max_prompt_tokens: int = Field(default=2_048, ge=1)
    """Maximum length of the student's prompt, in tokens. A longer problem is refused. Counts towards the length that
    the rollout engine reserves."""
    max_context_tokens: int = Field(default=12_288, ge=1)
    """Maximum length of the teacher's prompts that contain an intervention, in tokens. If a solution makes one longer,
    the beginning of the solution is cut."""
