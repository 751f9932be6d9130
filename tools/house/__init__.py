"""Order of the rooms, and counts that show whether the package stays in order: `python -m tools.house`."""
