"""Numbers of the study of teacher self-deviation (TSD)."""
