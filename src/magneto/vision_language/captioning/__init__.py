"""Image captioning: a text that says what an image shows, written from left to right."""
