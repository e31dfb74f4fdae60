"""What a comparison says in sentences: what did not learn, what is best, and how sure that is.

Two means are told apart by the 95 % confidence interval of their difference (Welch's t test, over
seeds): where it holds 0, the difference is within noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from magneto.analysis.sweep.summary import Summary
from magneto.functional.statistics import Difference, mean_difference


def answer(
    summaries: Sequence[Summary],
    higher_is_better: bool,
    metric: str,
    data: Mapping[str, str] | None = None,
) -> list[str]:
    """Say in sentences what the grid shows.

    Args:
        summaries: One for each row.
        higher_is_better: Direction of the metric.
        metric: Its name.
        data: The data of each row, where rows differ in it: only rows of the same are ranked.
    """
    alike: dict[str, list[Summary]] = {}
    for summary in summaries:
        alike.setdefault((data or {}).get(summary.placement, ""), []).append(summary)
    groups = [ranking(group, higher_is_better) for group in alike.values()]
    sentences = [*unfinished(summaries), *different_data(alike)]
    if any(undecided(ranked) for ranked in groups):
        sentences.append("Not decided: one seed, so no difference can be told from noise.")
    sentences += not_learned(summaries)
    if not any(groups):
        return [*sentences, "Nothing learned at every seed of any of these learning rates."]
    for ranked in groups:
        sentences += best(ranked, metric)
    sentences += stability(summaries)
    sentences.append(divergence(summaries))
    never = [s.title for s in summaries if s.score is None and s.finished]
    if never:
        sentences.append(f"At no rate did every seed learn: {', '.join(never)}.")
    return sentences


def ranking(summaries: Sequence[Summary], higher_is_better: bool) -> list[Summary]:
    """Return those that have a score, the best first."""
    ranked = [s for s in summaries if s.score is not None]
    return sorted(ranked, key=lambda s: s.score or 0.0, reverse=higher_is_better)


def undecided(ranked: Sequence[Summary]) -> bool:
    """Return whether there is something to decide, and one seed to do it by."""
    return len(ranked) > 1 and len(ranked[0].scores) < 2


def best(ranked: Sequence[Summary], metric: str) -> list[str]:
    """Say which is best, and how far the others are from it."""
    if not ranked:
        return []
    first, *others = ranked
    lead = "is best here" if all(beyond_noise(first, o) for o in others) else "has the best score"
    score = f"{metric} {plus_minus(first)} at learning rate {first.best_learning_rate:g}"
    return [f"{first.title} {lead}: {score}.", *distances(first, others)]


def different_data(alike: Mapping[str, Sequence[Summary]]) -> list[str]:
    """Say that rows of different data are not ranked against each other."""
    if len(alike) < 2:
        return []
    return [f"Scores on different data cannot be ranked against each other ({'; '.join(alike)}): "
            "each row is compared only with those of the same data, and judged by the baseline "
            "there."]  # fmt: skip


def unfinished(summaries: Sequence[Summary]) -> list[str]:
    """Say how many runs are still to come: what is said of a part may change with them."""
    missing = sum(s.missing for s in summaries)
    total = missing + sum(runs(s) for s in summaries)
    return [f"{missing} of {total} runs have no result yet."] if missing else []


def not_learned(summaries: Sequence[Summary]) -> list[str]:
    """Name the placements of which no run learned, then those of which some did not."""
    none = [s.title for s in summaries if s.stuck + s.diverged and not s.finished]
    some = [f"{s.title} in {s.stuck} of {runs(s)}" for s in summaries if s.stuck and s.finished]
    sentences = []
    if none:
        sentences.append(f"Did not learn at any rate: {', '.join(none)}.")
    if some:
        sentences.append(f"Finished without learning: {', '.join(some)} runs.")
    return sentences


def runs(summary: Summary) -> int:
    """Return how many runs have a result."""
    return summary.finished + summary.stuck + summary.diverged


def stability(summaries: Sequence[Summary]) -> list[str]:
    """Say each placement's largest stable rate, and what was tried beyond it."""
    stable = [s for s in summaries if s.largest_stable_rate is not None]
    if not stable:
        return []
    stable.sort(key=lambda s: s.largest_stable_rate or 0.0, reverse=True)
    found = "; ".join(f"{s.title} {s.largest_stable_rate:g} ({beyond(s)})" for s in stable)
    sentences = [f"Largest stable learning rate: {found}."]
    sentences += [
        f"{s.title} has its best score at {s.best_learning_rate:g}, above its largest stable rate."
        for s in summaries
        if s.best_beyond_stable
    ]
    return sentences


def beyond(summary: Summary) -> str:
    """Say what happened at the next rate that was tried."""
    if summary.next_rate is None:
        return "the largest tried"
    failed, count = summary.failed_there
    if not failed:
        return f"at {summary.next_rate:g} not every run has a result yet"
    return f"{failed} of {count} failed at {summary.next_rate:g}, nothing between was tried"


def divergence(summaries: Sequence[Summary]) -> str:
    """Say how many runs diverged; the same number of each is told once."""
    lost = [f"{s.title} in {s.diverged} of {runs(s)}" for s in summaries if s.diverged]
    counts = {(s.diverged, runs(s)) for s in summaries}
    if len(lost) > 1 and len(counts) == 1:
        lost = [f"{summaries[0].diverged} of {runs(summaries[0])} each"]
    return f"Runs diverged: {', '.join(lost)}." if lost else "No run diverged."


def plus_minus(summary: Summary) -> str:
    """Write a score with its interval."""
    interval = "" if summary.interval is None else f" ± {summary.interval:.2g}"
    return f"{summary.score:.4g}{interval}"


def beyond_noise(first: Summary, other: Summary) -> bool:
    """Return whether another is behind the best by more than noise; False where nobody can tell."""
    gap = mean_difference(other.scores, first.scores)
    return not math.isnan(gap.half_width) and abs(gap.mean) > gap.half_width


def distances(first: Summary, others: Sequence[Summary]) -> list[str]:
    """Say how far the others are from the best: within noise, beyond it, or nobody can tell."""
    groups: dict[str, list[str]] = {"Within noise of it": [], "Beyond noise": [], "Behind it": []}
    for other in others:
        gap = mean_difference(other.scores, first.scores)
        if math.isnan(gap.half_width):
            where = "Behind it"
        else:
            where = "Beyond noise" if beyond_noise(first, other) else "Within noise of it"
        groups[where].append(f"{other.title} ({behind(gap)})")
    return [f"{where}: {', '.join(names)}." for where, names in groups.items() if names]


def behind(gap: Difference) -> str:
    """Write a difference to the best score with its 95 % interval, and which way it goes."""
    width = "" if math.isnan(gap.half_width) else f" ± {gap.half_width:.2g}"
    return f"{abs(gap.mean):.2g}{width} {'higher' if gap.mean > 0 else 'lower'}"
