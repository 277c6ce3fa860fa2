"""Evaluation of models on benchmarks: seeded samples, checked answers, paired comparisons with intervals."""
