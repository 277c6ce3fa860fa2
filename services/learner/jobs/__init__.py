"""Work with the learner's student without a run."""
