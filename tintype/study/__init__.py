"""A study has a baseline, several arms with one change each, several seeds, and a verdict for each arm."""
