"""What is stored and computed in which type while a few real steps run, and what is lost by it."""
