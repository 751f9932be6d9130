"""Draw sentences of the docs, the docstrings and the errors to read, and find long ones."""
