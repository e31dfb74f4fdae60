"""Invented cells of grids with known conclusions, and comparisons of them."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from magneto.lab.answer import answer
from magneto.lab.outcome import Judge, Scored, summarise

BASELINE = 7.5


def cell(
    placement: str,
    rate: float,
    seed: int,
    score: float | str | None,
    first: float = 8.0,
    baseline: float = BASELINE,
) -> Scored:
    """None diverged, "missing" has no result, a score that is not below the baseline is no success.

    The curve is a line from the first loss to the score, or to 20.
    """
    where = (placement, rate, seed)
    if isinstance(score, str):
        return Scored(*where, score)
    end = 20.0 if score is None else score
    curve = [[10 * i, first + (end - first) * i / 20] for i in range(1, 21)]
    common: dict[str, Any] = {"initial_loss": first, "seconds": 10.0, "steps": 200}
    if score is None:
        return Scored(*where, "diverged", diverged_at=67, reason="the loss is nan",
                      curve=[*curve, [210, math.inf]], **common)  # fmt: skip
    status = "finished" if score < baseline else "did not learn"
    return Scored(*where, status, score=score, loss=score, curve=curve, **common)


def cells(placement: str, table: dict[float, list[Any]], first: float = 8.0) -> list[Scored]:
    """Return a cell for each seed at each rate; seeds are counted from 0."""
    return [
        cell(placement, rate, seed, score, first)
        for rate, scores in table.items()
        for seed, score in enumerate(scores)
    ]


def assemble(cells: Sequence[Scored], judge: Judge) -> dict[str, Any]:
    """Return the comparison of some cells."""
    placements = list(dict.fromkeys(cell.placement for cell in cells))
    higher = judge.higher_is_better
    summaries = [summarise(cells, name, higher) for name in placements]
    return {
        "recipe": "causal-lm/tiny", "task": "causal-lm", "metric": judge.metric,
        "higher_is_better": higher, "baseline": judge.baseline, "threshold": judge.threshold,
        "unit": "tokens", "overrides": {"model.layers": 24},
        "command": "magneto compare causal-lm/tiny --placements 'post,sub,<mine>'",
        "created": "2026-01-02T03:04:05+00:00",
        "environment": {"python": ["3.12.1"], "torch": ["2.13.0", "2.14.0"],
                        "commit": ["abc123"]},
        "config": {"task": "causal-lm", "model": {"layers": 24, "width": 48},
                   "training": {"steps": 200}},
        "placements": placements,
        "learning_rates": sorted({cell.learning_rate for cell in cells}),
        "seeds": sorted({cell.seed for cell in cells}),
        "cells": [asdict(cell) for cell in cells],
        "summary": [asdict(summary) for summary in summaries],
        "answer": answer(summaries, higher, judge.metric),
    }  # fmt: skip
