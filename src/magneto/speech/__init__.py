"""Speech recognition with Transformer-Transducers."""
