"""What a run lists of its data."""

from pathlib import Path

from magneto.data.problems import PROBLEMS_FILE


def listed(run: Path) -> list[list[str]]:
    """Return kind, name and reason of each example in a run's list."""
    lines = (run / PROBLEMS_FILE).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]
