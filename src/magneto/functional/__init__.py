"""Arithmetic without parameters."""
