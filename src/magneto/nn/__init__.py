"""Modules that know no task: embeddings in, features out, both (batch, length, width)."""
