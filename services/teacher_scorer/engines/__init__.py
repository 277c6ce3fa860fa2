"""Scoring engines."""
