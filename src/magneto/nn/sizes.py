"""Sizes that a model or a search can have: beyond them a number is a slip of the keyboard."""

from __future__ import annotations

from collections.abc import Mapping

# Of layers; of what a search keeps; of widths, of which one matrix of the widest needs a petabyte.
MOST = {
    "layers": 100_000, "encoder_layers": 100_000, "decoder_layers": 100_000,
    "beams": 1_000, "count": 10_000,
}  # fmt: skip
MOST_WIDTH = 1 << 24


def wrong_sizes(sizes: Mapping[str, int]) -> list[str]:
    """Return a line for each size, by its name, that no model has; of a width, what it needs."""
    lines = []
    for name, size in sizes.items():
        most = MOST.get(name, MOST_WIDTH)
        if size < 1:
            lines.append(f"{name} must be 1 or more, not {size}")
        elif size > most:
            square = f" (one matrix of such queries needs {4 * size**2 / 1e12:,.0f} TB)"
            memory = square if name == "width" else ""
            lines.append(f"{name} must be at most {most:,}, not {size:,}{memory}")
    return lines
