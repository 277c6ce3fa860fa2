"""The TSD study: where a teacher's log-probabilities move when its context does, measured before any training.

collect (rollouts, rescored under every context) -> shards -> analyze (streaming sums) -> analysis.json, tables, page.
"""
