"""One loop for every task: steps, checkpoints, ranks, and what is written down of them."""
