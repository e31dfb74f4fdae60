"""Image-text retrieval: the caption of an image, and the image of a caption, among many."""
