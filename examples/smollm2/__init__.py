"""A real language model on a CPU: SmolLM2-135M-Instruct teaches a student that was cut from it."""
