"""The learner: FSDP2 ranks that form the step's gradient from trajectories as they arrive."""
