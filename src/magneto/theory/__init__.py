"""What the paper derives, in pure Python: gains, the placement table, bounds on the model update."""
