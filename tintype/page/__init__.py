"""Pieces of reports and pages: SVG, numbers as text, the style sheet."""
