"""Invented cells of grids with known conclusions, and comparisons of them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from magneto.lab.answer import answer
from magneto.lab.outcome import Judge, Scored, summarise

BASELINE = 7.5


def status(score: float | None) -> str:
    if score is None:
        return "diverged"
    return "did not learn" if score == BASELINE else "finished"


def cells(
    placement: str, table: dict[float, list[float | None]], first: float = 8.0
) -> list[Scored]:
    """A score per seed at each rate; None diverged, a score at the baseline did not learn."""
    return [
        Scored(
            placement, rate, seed, status(score),
            score=score, loss=score, initial_loss=first,
        )
        for rate, scores in table.items()
        for seed, score in enumerate(scores)
    ]  # fmt: skip


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
