"""Several runs on one page: their curves with bands over seeds, and their times."""
