"""Visual reasoning: whether a statement is true of one image or of several."""
