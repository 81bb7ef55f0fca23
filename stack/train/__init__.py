"""Data loading, loop, guard, checkpoints, launch."""
