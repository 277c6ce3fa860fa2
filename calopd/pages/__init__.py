"""Self-contained HTML pages: the parts that the report, the evaluation and the study share, and the report."""
