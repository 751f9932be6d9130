"""Building blocks of reports and pages, such as SVG, numbers as text, and the style sheet."""
