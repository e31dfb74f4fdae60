"""Metrics: other people's arithmetic, in the form that we report."""
