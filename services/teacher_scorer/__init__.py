"""The teacher: log-probabilities of response tokens under any number of contexts, over gRPC."""
