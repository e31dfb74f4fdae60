"""The visual tokenizer: an image becomes a grid of codes (VQ-KD, arXiv 2208.06366)."""
