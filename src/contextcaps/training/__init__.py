"""Training: losses, the loop, runs and checkpoints, several processes."""
