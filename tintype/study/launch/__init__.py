"""Launchers: each starts workers of a study elsewhere, and does nothing else. What they run is `tintype work`."""
