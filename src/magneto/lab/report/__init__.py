"""Reports of comparisons, ladders and runs: one page with figures and tables."""
