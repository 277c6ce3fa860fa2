"""Planning of hardware: GPUs, memory of each role, and whether a configuration fits."""
