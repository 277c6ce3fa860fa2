"""The TSD study: measure how much a teacher's scores depend on its prompt, and choose probes and relaxation."""

HELP = "the TSD study: a teacher's prompt sensitivity, and which probes and relaxation to train with"
