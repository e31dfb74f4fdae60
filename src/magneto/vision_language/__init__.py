"""Vision and language: one Multiway Transformer reads images, texts and pairs of both (BEiT-3)."""
