"""Samples responses from the student, requests their scores as soon as each is complete, and commits them."""
