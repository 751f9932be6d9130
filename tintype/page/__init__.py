"""Building blocks of reports and pages: SVG, numbers as text, and the style sheet."""
