"""Read YAML and JSON strictly, find the files that settings name, and pin loaded content."""
