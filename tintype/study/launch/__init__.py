"""Launchers only start workers of a study (`tintype work`) on other machines or in a queue."""
