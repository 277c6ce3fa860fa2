"""Figures and tables that are drawn on a page and exported: CSV for numbers, SVG and LaTeX for papers."""
