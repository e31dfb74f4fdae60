"""Training loop of all tasks: steps, checkpoints, ranks and logs."""
