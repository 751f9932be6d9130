"""Training: one training loop, one update step, one state, and checkpoints that survive crashes."""
