"""calopd: on-policy distillation that learns only what lies beyond the teacher's own wobble."""

__version__ = "0.1.0"
