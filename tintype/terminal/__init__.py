"""Print the output of commands on the terminal, with progress during the work and tables at the end."""
