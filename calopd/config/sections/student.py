"""[student]: the model that is trained."""

from calopd.config.sections.base import Section


class StudentSection(Section):
    """The model that is trained."""

    path: str
    """Directory of the model (`config.json` and `*.safetensors`) or its id on the Hugging Face hub (`owner/name`)."""
