"""The TSD study: how a teacher's log-probabilities change with its context, measured before any training.

collect (rollouts, rescored under every context) -> shards -> analyze (streaming sums) -> analysis.json, tables, page.
"""
