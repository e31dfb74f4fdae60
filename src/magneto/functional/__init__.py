"""Losses and statistics without parameters."""
