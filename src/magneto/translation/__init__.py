"""Multilingual machine translation."""
