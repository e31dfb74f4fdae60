"""Masked data modelling: hidden words and hidden patches are guessed alike (BEiT-3)."""
