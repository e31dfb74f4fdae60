"""Vision and language: a Multiway Transformer reads images, texts and image-text pairs (BEiT-3)."""
