"""Train a run by one loop, one update step, one state, and checkpoints that survive crashes."""
