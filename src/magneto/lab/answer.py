"""Conclusions of a comparison, written as sentences.

The first conclusion names the row with the best score, and says whether the lead is significant.
The runs of a row differ only in learning rate and seed. Welch's t test over seeds tells whether two
means differ significantly, at the level 5 % with Holm's correction for all pairs of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from magneto.functional.statistics import Difference, joint_differences
from magneto.lab.outcome import Summary

# With fewer seeds per row, a row that always fails does not differ significantly from a row that
# never fails, by Fisher's exact test (3 of 3 against 0 of 3: p = 0.1).
ENOUGH_SEEDS = 4


def answer(summaries: Sequence[Summary], higher_is_better: bool, metric: str) -> list[str]:
    """Return the conclusions of a comparison as sentences, the main conclusion first."""
    scored = [s for s in summaries if s.score is not None]
    ranked = sorted(scored, key=lambda s: s.score or 0.0, reverse=higher_is_better)
    sentences = best(summaries, ranked, metric) if ranked else [nothing_learned(summaries)]
    if undecided(summaries, ranked):
        sentences.append("The best row is undecided, because one seed gives no measure of noise.")
    sentences += [*unfinished(summaries), *not_learned(summaries)]
    sentences += [*stability(summaries), *divergence(summaries)]
    never = [s.title for s in summaries if s.score is None and s.finished and not s.missing]
    if never and ranked:
        sentences.append(f"Rows without a rate at which all seeds learned: {', '.join(never)}.")
    return sentences


def nothing_learned(summaries: Sequence[Summary]) -> str:
    if not any(s.ended for s in summaries):
        return "There is no result yet."
    if any(s.missing for s in summaries):
        return "So far there is no rate at which all seeds learned."
    if any(s.finished for s in summaries):
        return "There is no rate at which all seeds learned."
    return "No run learned at any of these learning rates."


def undecided(summaries: Sequence[Summary], ranked: Sequence[Summary]) -> bool:
    """Return whether there are too few seeds to test the lead of the best row.

    The test needs two seeds of this row, and two seeds of another ranked row if there is one.
    """
    if not ranked or len(summaries) < 2:
        return False
    first, *others = ranked
    return len(first.scores) < 2 or (bool(others) and all(len(o.scores) < 2 for o in others))


def best(summaries: Sequence[Summary], ranked: Sequence[Summary], metric: str) -> list[str]:
    first, *others = ranked
    # Holm's method corrects over all pairs; the pairs with the best row come first.
    gaps = joint_differences([(b.scores, a.scores) for a, b in combinations(ranked, 2)])
    found = [(other.title, gap) for other, gap in zip(others, gaps, strict=False)]
    interval = "" if first.interval is None else f" ± {first.interval:.2g}"
    score = f"{metric} {first.score:.4g}{interval} at learning rate {first.best_learning_rate:g}"
    claim = best_claim(summaries, [gap for _, gap in found])
    return [f"{first.title} {claim}: {score}.", *distances(found)]


def best_claim(summaries: Sequence[Summary], gaps: Sequence[Difference]) -> str:
    """Return a claim about the best row, such as "is significantly better than all others"."""
    tied = any(gap.mean == 0 for gap in gaps)
    if any(summary.missing for summary in summaries):
        return "shares the best score so far" if tied else "has the best score so far"
    if len(summaries) == 1:
        return "has its best score"
    if not gaps:
        return "is the only row with a rate at which all seeds learned"
    if all(is_significant(gap) for gap in gaps):
        return "is significantly better than all others"
    if tied:
        return "shares the best score"
    close = [math.isfinite(gap.half_width) and not is_significant(gap) for gap in gaps]
    over = "" if all(close) else " over some others"
    return "has the best score" + (f", but its lead{over} is not significant" if any(close) else "")


def unfinished(summaries: Sequence[Summary]) -> list[str]:
    missing = sum(s.missing for s in summaries)
    total = missing + sum(s.ended for s in summaries)
    return [f"{missing} of {total} runs have no result yet."] if missing else []


def not_learned(summaries: Sequence[Summary]) -> list[str]:
    none = [s for s in summaries if s.stuck + s.diverged and not s.finished + s.missing]
    some = [f"{s.stuck} of {s.ended} for {s.title}" for s in summaries if s.stuck and s not in none]
    sentences = []
    if none and len(none) < len(summaries):
        sentences.append(f"Rows in which no run learned: {', '.join(s.title for s in none)}.")
    if some:
        sentences.append(f"Runs that finished without learning: {', '.join(some)}.")
    return sentences


def stability(summaries: Sequence[Summary]) -> list[str]:
    """Return sentences with each row's largest stable rate and the next larger tested rate."""
    stable = [s for s in summaries if s.largest_stable_rate is not None]
    if not stable:
        return []
    stable.sort(key=lambda s: s.largest_stable_rate or 0.0, reverse=True)
    found = "; ".join(f"{s.title} {s.largest_stable_rate:g} ({next_result(s)})" for s in stable)
    count = len(summaries[0].stable_seeds)
    seeds = "one seed" if count == 1 else f"{count} seeds"
    sentences = [f"Largest stable learning rates ({seeds} at every rate): {found}."]
    if len(summaries) > 1 and count < ENOUGH_SEEDS:
        sentences.append("These seeds are too few to compare largest stable rates.")
    fails = [f"{s.others_failed[0]} of {s.others_failed[1]} for {s.title}"
             for s in stable if s.others_failed[0]]  # fmt: skip
    if fails:
        sentences.append(
            "Runs of additional seeds failed at or below the largest stable rate: "
            f"{', '.join(fails)}."
        )
    sentences += [
        f"{s.title} has its best score at {s.best_learning_rate:g}, above its largest stable rate."
        for s in summaries
        if s.best_beyond_stable
    ]
    return sentences


def next_result(summary: Summary) -> str:
    if summary.next_rate is None:
        return "the largest tested"
    failed, count = summary.failed_there
    if not failed:
        return f"results missing at {summary.next_rate:g}"
    return f"{failed} of {count} failed at {summary.next_rate:g}"


def divergence(summaries: Sequence[Summary]) -> list[str]:
    """Return a list with one sentence on diverged runs, or [] if no run has ended."""
    if not any(s.ended for s in summaries):
        return []
    lost = [f"{s.diverged} of {s.ended} for {s.title}" for s in summaries if s.diverged]
    return [f"Diverged runs: {', '.join(lost)}." if lost else "No run diverged."]


def is_significant(gap: Difference) -> bool:
    return not math.isnan(gap.half_width) and abs(gap.mean) > gap.half_width


def distances(gaps: Sequence[tuple[str, Difference]]) -> list[str]:
    groups: dict[str, list[str]] = {
        "Equal scores": [], "Not significantly worse": [], "Significantly worse": [],
        "Too few seeds to compare": [],
    }  # fmt: skip
    for title, gap in gaps:
        if gap.mean == 0:
            groups["Equal scores"].append(title)
            continue
        if math.isnan(gap.half_width):
            kind = "Too few seeds to compare"
        else:
            kind = "Significantly worse" if is_significant(gap) else "Not significantly worse"
        groups[kind].append(f"{title} ({difference_text(gap)})")
    return [f"{kind}: {', '.join(names)}." for kind, names in groups.items() if names]


def difference_text(gap: Difference) -> str:
    width = "" if math.isnan(gap.half_width) else f" ± {gap.half_width:.2g}"
    return f"{abs(gap.mean):.2g}{width} {'higher' if gap.mean > 0 else 'lower'}"
