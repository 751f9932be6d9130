"""The order of the rooms, and counts that say whether the house stays in order: `python -m tools.house`."""
