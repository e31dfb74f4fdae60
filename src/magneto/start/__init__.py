"""From data to a recipe: what a source holds, what is easy on it, and what to train."""
