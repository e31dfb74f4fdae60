"""Conversion of weights of other libraries."""
