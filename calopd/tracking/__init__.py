"""Where the metrics of a step go."""
