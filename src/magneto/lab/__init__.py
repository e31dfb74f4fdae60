"""Stability lab: probes of norm placements, comparisons at several sizes, and reports."""
