"""Experiments: many runs from one TOML, with their evaluations, tables and figures."""

HELP = "many runs from one file: plan them, run them, write tables and figures"
