"""Statistics of the teacher self-deviation (TSD) study."""
