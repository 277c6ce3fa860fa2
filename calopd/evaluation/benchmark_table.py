"""The benchmarks of the paper. It imports nothing, so that the help of `calopd eval` can list them at once."""

HUB = {
    "amc23": ("AMC23", "math-ai/amc23"),
    "aime24": ("AIME24", "HuggingFaceH4/aime_2024"),
    "aime25": ("AIME25", "math-ai/aime25"),
    "aime26": ("AIME26", "MathArena/aime_2026"),
    "hmmt26": ("HMMT26", "MathArena/hmmt_feb_2026"),
    "math500": ("MATH500", "HuggingFaceH4/MATH-500"),
}
"""Name on the command line -> name in the paper, and data set on the hub."""
