"""Translation between many languages with one encoder-decoder."""
