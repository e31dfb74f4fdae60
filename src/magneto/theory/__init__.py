"""What the paper derives, in pure Python: gains, the placement table, update bounds."""
