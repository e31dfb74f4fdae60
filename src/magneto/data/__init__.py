"""Data: sources, tables, tokenizers, batches and worker processes."""
