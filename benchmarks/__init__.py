"""Benchmarks of the package and of comparable libraries."""
