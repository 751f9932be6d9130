"""Launchers: each launcher only starts workers of a study (`tintype work`) on other machines or in a queue."""
