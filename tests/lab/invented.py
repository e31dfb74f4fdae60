"""Cells of grids whose answer is known."""

from magneto.lab.outcome import Scored

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
