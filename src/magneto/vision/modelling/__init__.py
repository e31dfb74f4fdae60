"""Masked image modelling: the codes of hidden patches are guessed (BEiT, arXiv 2106.08254)."""
