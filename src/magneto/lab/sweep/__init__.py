"""The same recipe over a grid of placements, rates and seeds, on many processes."""
