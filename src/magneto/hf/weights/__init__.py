"""Other people's weights: one file per foreign format."""
