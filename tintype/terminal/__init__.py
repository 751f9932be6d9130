"""What the commands show on the terminal: progress while they work, tables when they are done."""
