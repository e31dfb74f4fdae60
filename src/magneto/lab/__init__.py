"""The stability lab: what the theory bounds, what is measured, and what to train."""
