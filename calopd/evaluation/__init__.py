"""Accuracy that one can trust: seeded samples of a model, checked, counted, compared with intervals."""
