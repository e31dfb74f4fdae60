"""Transformer modules: layers, attention, positions, embeddings, initialisation and stacks."""
