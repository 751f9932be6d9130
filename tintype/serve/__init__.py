"""Serve web pages for a folder of runs and studies, by server-side HTML, a small script and event streams."""
