"""Stability lab: probes, comparisons and ladders of norm placements, and their reports."""
