"""Web pages for a folder of runs and studies: HTML rendered on the server, a small script, an event stream per page."""
