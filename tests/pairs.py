"""Pairs in place of products of a test's parameters."""

from collections.abc import Iterable
from itertools import cycle, product
from typing import Any


def in_turn(rows: Iterable[str], *others: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Pair each row with one combination of the other values, and "sub" with all of them."""
    combinations = list(product(*others))
    paired = [(row, *each) for row, each in zip(rows, cycle(combinations), strict=False)]
    return list(dict.fromkeys([*paired, *(("sub", *each) for each in combinations)]))
