"""Stability lab: it probes norm placements, compares them at several sizes, and writes reports."""
