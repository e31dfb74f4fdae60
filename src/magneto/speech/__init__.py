"""Speech recognition: recordings to text."""
