"""A local page for a folder of runs and studies: server-rendered HTML, one small script, one event stream a page."""
