"""Print the output of commands on the terminal: progress during the work, and tables at the end."""
