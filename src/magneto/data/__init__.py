"""Where examples come from: sources, tokenizers, packing, and sets that need no network."""
