"""Norm placements, their derived gains, and bounds on the model update. Imports no torch."""
