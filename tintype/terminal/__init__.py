"""Output of the commands on the terminal: progress while they work, tables when they are done."""
