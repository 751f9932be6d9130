"""Training: one loop, one update, one state, and checkpoints that survive anything."""
