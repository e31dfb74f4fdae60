"""What a comparison says in sentences: what is best, how sure that is, and what did not learn.

The first sentence is the answer. Two means are told apart by Welch's t test over seeds, by Holm's
method over all pairs of rows: where the interval of their difference holds 0, it is within noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from magneto.functional.statistics import Difference, joint_differences
from magneto.lab.outcome import Summary

# With fewer seeds even all against none is no difference by Fisher's exact test (3 and 3: p = 0.1).
ENOUGH_SEEDS = 4


def answer(summaries: Sequence[Summary], higher_is_better: bool, metric: str) -> list[str]:
    """Say in sentences what the grid shows, the answer first.

    Args:
        summaries: One for each row.
        higher_is_better: Direction of the metric.
        metric: Its name.
    """
    ranked = ranking(summaries, higher_is_better)
    sentences = best(summaries, ranked, metric) if ranked else [nothing_learned(summaries)]
    if undecided(summaries, ranked):
        sentences.append("Not decided: with one seed no difference can be told from noise.")
    sentences += [*unfinished(summaries), *not_learned(summaries)]
    sentences += [*stability(summaries), *divergence(summaries)]
    never = [s.title for s in summaries if s.score is None and s.finished and not s.missing]
    if never and ranked:
        sentences.append(f"At no rate did all seeds learn: {', '.join(never)}.")
    return sentences


def ranking(summaries: Sequence[Summary], higher_is_better: bool) -> list[Summary]:
    """Return those that have a score, the best first."""
    ranked = [s for s in summaries if s.score is not None]
    return sorted(ranked, key=lambda s: s.score or 0.0, reverse=higher_is_better)


def nothing_learned(summaries: Sequence[Summary]) -> str:
    """Say that no row has a rate at which all seeds learned."""
    if not any(s.ended for s in summaries):
        return "There is no result yet."
    if any(s.missing for s in summaries):
        return "So far there is no rate at which all seeds learned."
    if any(s.finished for s in summaries):
        return "At no rate did all seeds learn."
    return "Nothing learned at any of these learning rates."


def undecided(summaries: Sequence[Summary], ranked: Sequence[Summary]) -> bool:
    """Return whether rows were compared, and one seed is all there is to decide by."""
    if not ranked or len(summaries) < 2:
        return False
    first, *others = ranked
    return len(first.scores) < 2 or (bool(others) and all(len(o.scores) < 2 for o in others))


def best(summaries: Sequence[Summary], ranked: Sequence[Summary], metric: str) -> list[str]:
    """Say which row is best, and how far the others are from it."""
    first, *others = ranked
    # All pairs are judged together; those with the best come first.
    gaps = joint_differences([(b.scores, a.scores) for a, b in combinations(ranked, 2)])
    found = [(other.title, gap) for other, gap in zip(others, gaps, strict=False)]
    interval = "" if first.interval is None else f" ± {first.interval:.2g}"
    score = f"{metric} {first.score:.4g}{interval} at learning rate {first.best_learning_rate:g}"
    said = lead(summaries, [gap for _, gap in found])
    return [f"{first.title} {said}: {score}.", *distances(found)]


def lead(summaries: Sequence[Summary], gaps: Sequence[Difference]) -> str:
    """Say what may be said of the row with the best score."""
    if any(summary.missing for summary in summaries):
        return "has the best score so far"
    if len(summaries) == 1:
        return "has its best score here"
    if not gaps:
        return "alone has a rate at which all seeds learned"
    if all(beyond_noise(gap) for gap in gaps):
        return "is best here"
    within = any(math.isfinite(gap.half_width) and not beyond_noise(gap) for gap in gaps)
    return "has the best score, others are within noise of it" if within else "has the best score"


def unfinished(summaries: Sequence[Summary]) -> list[str]:
    """Say how many runs are still to come: what is said of a part may change with them."""
    missing = sum(s.missing for s in summaries)
    total = missing + sum(s.ended for s in summaries)
    return [f"{missing} of {total} runs have no result yet."] if missing else []


def not_learned(summaries: Sequence[Summary]) -> list[str]:
    """Name the placements of which no run learned, then those of which some did not."""
    none = [s for s in summaries if s.stuck + s.diverged and not s.finished + s.missing]
    some = [f"{s.title} in {s.stuck} of {s.ended}" for s in summaries if s.stuck and s not in none]
    sentences = []
    if none and len(none) < len(summaries):
        sentences.append(f"Did not learn at any rate: {', '.join(s.title for s in none)}.")
    if some:
        sentences.append(f"Finished without learning: {', '.join(some)} runs.")
    return sentences


def stability(summaries: Sequence[Summary]) -> list[str]:
    """Say each placement's largest stable rate, by how many seeds, and what was tried beyond it."""
    stable = [s for s in summaries if s.largest_stable_rate is not None]
    if not stable:
        return []
    stable.sort(key=lambda s: s.largest_stable_rate or 0.0, reverse=True)
    found = "; ".join(f"{s.title} {s.largest_stable_rate:g} ({beyond(s)})" for s in stable)
    count = len(summaries[0].stable_seeds)
    seeds = "one seed" if count == 1 else f"{count} seeds"
    sentences = [f"Largest stable learning rate, by the {seeds} that ran at every rate: {found}."]
    if len(summaries) > 1 and count < ENOUGH_SEEDS:
        sentences.append("So few seeds can't tell one largest stable rate from another.")
    fails = [f"{s.title} in {s.others_failed[0]} of {s.others_failed[1]}"
             for s in stable if s.others_failed[0]]  # fmt: skip
    if fails:
        sentences.append(f"Of further seeds' runs up to that rate failed: {', '.join(fails)}.")
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


def divergence(summaries: Sequence[Summary]) -> list[str]:
    """Say how many runs diverged; the same number of each is told once."""
    if not any(s.ended for s in summaries):
        return []
    lost = [f"{s.title} in {s.diverged} of {s.ended}" for s in summaries if s.diverged]
    counts = {(s.diverged, s.ended) for s in summaries}
    if len(lost) > 1 and len(counts) == 1:
        lost = [f"{summaries[0].diverged} of {summaries[0].ended} each"]
    return [f"Runs diverged: {', '.join(lost)}." if lost else "No run diverged."]


def beyond_noise(gap: Difference) -> bool:
    """Return whether a difference is more than noise; False where nobody can tell."""
    return not math.isnan(gap.half_width) and abs(gap.mean) > gap.half_width


def distances(gaps: Sequence[tuple[str, Difference]]) -> list[str]:
    """Say how far others, by their titles, are from the best, and whether that is noise."""
    groups: dict[str, list[str]] = {
        "Within noise of it": [], "Beyond noise": [], "Too few seeds to tell": [],
    }  # fmt: skip
    for title, gap in gaps:
        if math.isnan(gap.half_width):
            where = "Too few seeds to tell"
        else:
            where = "Beyond noise" if beyond_noise(gap) else "Within noise of it"
        groups[where].append(f"{title} ({behind(gap)})")
    return [f"{where}: {', '.join(names)}." for where, names in groups.items() if names]


def behind(gap: Difference) -> str:
    """Write a difference to the best score with its interval, and which way it goes."""
    width = "" if math.isnan(gap.half_width) else f" ± {gap.half_width:.2g}"
    return f"{abs(gap.mean):.2g}{width} {'higher' if gap.mean > 0 else 'lower'}"
