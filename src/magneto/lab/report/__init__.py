"""What was measured, as figures and one page."""
