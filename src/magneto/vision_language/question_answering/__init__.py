"""Visual question answering: a question about an image, an answer out of a list."""
