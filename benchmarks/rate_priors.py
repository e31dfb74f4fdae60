"""Best rates of the published ladders, predicted again with other priors of the exponent.

    python -m benchmarks.rate_priors

Each best rate is predicted from the measured best rates of the smaller sizes, as `magneto ladder`
does it: with the earlier prior, with today's priors, and by the two simple rules. These priors were
chosen when the measured values were known. Therefore the exponent over the width is also chosen by
leaving one ladder out: it is the exponent with the smallest mean error on the other ladders. The
command reads benchmarks/results/ladder-NAME.csv and writes benchmarks/results/rate-priors.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from benchmarks.ladders import LADDERS, RESULTS, ladder_of, read_rows
from magneto.functional.statistics import t_quantile
from magneto.lab.forecast import PRIORS, error_factor
from magneto.lab.rung import AT_EDGE, BETWEEN
from magneto.lab.trend import LEVEL, Prior, fit_law

EARLIER = Prior(-0.5, 0.5, 0.3)
EXPONENTS = [-number / 20 for number in range(41)]
STANDARD = "width, standard parametrisation"
SEVERAL = f"{STANDARD}: only those predicted from two or more sizes"
GROUPS = {
    STANDARD: ("width", "best_rate_by_width"),
    "width, mup": ("width", "best_rate"),
    "depth": ("depth", "best_rate"),
}


@dataclass(frozen=True)
class Held:
    """A measured best rate, and those of the smaller sizes as (size, rate, error)."""

    ladder: str
    axis: str
    prior: str  # key of today's prior
    size: int
    rate: float
    below: list[tuple[float, float, float]]

    def off(self, prior: Prior) -> float:
        return error_factor(fit_law(self.below, self.size, prior)["value"], self.rate)

    def holds(self, prior: Prior) -> bool:
        law = fit_law(self.below, self.size, prior)
        return law["low"] <= self.rate <= law["high"]

    def off_by_rules(self) -> tuple[float, float]:
        size, rate, _ = self.below[-1]
        return error_factor(rate, self.rate), error_factor(rate * size / self.size, self.rate)


def held_rates() -> Iterator[Held]:
    """Yield every published best rate that has smaller sizes in its ladder."""
    for name in LADDERS:
        ladder = ladder_of(name)
        keys, points = ladder.rate_priors(), dict[str, list[tuple[float, float, float]]]()
        for line in read_rows(RESULTS / f"ladder-{name}.csv"):
            if (line["what"], line["kind"]) == ("best_rate", "measured"):
                low, rate, high = (float(line[end]) for end in ("low", "value", "high"))
                point = float(line["size"]), rate, error(low, high, len(ladder.seeds))
                points.setdefault(line["row"], []).append(point)
        for row, known in points.items():
            for number, (size, rate, _) in list(enumerate(known))[1:]:
                yield Held(name, ladder.axis, keys[row], int(size), rate, known[:number])


def error(low: float, high: float, seeds: int) -> float:
    """Return the standard error of a log rate from its interval. At an edge it was assumed.

    All points of a ladder are taken to have as many seeds as the ladder.
    """
    half = math.log(high / low) / 2
    assumed = half / t_quantile((1 + LEVEL) / 2, math.inf)
    if any(math.isclose(assumed, edge, rel_tol=1e-6) for edge in (AT_EDGE, BETWEEN)):
        return assumed
    return half / t_quantile((1 + LEVEL) / 2, seeds - 1)


def group(every: Sequence[Held], name: str) -> Sequence[Held]:
    return [held for held in every if (held.axis, held.prior) == GROUPS[name]]


def table(every: Sequence[Held]) -> Iterator[str]:
    yield "| best rates over | values | earlier prior | today's priors | rule 1 | rule 2 |"
    yield "|---|--:|--:|--:|--:|--:|"
    groups = {name: group(every, name) for name in GROUPS} | {"all": every}
    groups[SEVERAL] = [held for held in groups[STANDARD] if len(held.below) > 1]
    for name, mine in groups.items():
        first, second = zip(*(held.off_by_rules() for held in mine), strict=True)
        yield (f"| {name} | {len(mine)} | {tested(mine, lambda held: EARLIER)} "
               f"| {tested(mine, lambda held: PRIORS[held.prior])} "
               f"| {median(first):.2f} | {median(second):.2f} |")  # fmt: skip


def tested(some: Sequence[Held], prior: Callable[[Held], Prior]) -> str:
    inside = sum(held.holds(prior(held)) for held in some)
    return f"{median(held.off(prior(held)) for held in some):.2f}, {inside} of {len(some)}"


def left_out(every: Sequence[Held]) -> Iterator[str]:
    """Yield the exponents over the standard width that the other ladders choose, and its errors."""
    some = group(every, STANDARD)
    errors, exponents = [], []
    yield "| ladder left out | exponent | median error factor |"
    yield "|---|--:|--:|"
    for name in dict.fromkeys(held.ladder for held in some):
        others = [held for held in some if held.ladder != name]
        exponent = min(EXPONENTS, key=lambda one: mean_log(others, with_exponent(one)))
        mine = [held.off(with_exponent(exponent)) for held in some if held.ladder == name]
        yield f"| {name} | {exponent:g} | {median(mine):.2f} |"
        exponents.append(exponent)
        errors += mine
    yield f"| all | {min(exponents):g} to {max(exponents):g} | {median(errors):.2f} |"


def with_exponent(exponent: float) -> Prior:
    return replace(PRIORS["best_rate_by_width"], exponent=exponent)


def mean_log(some: Sequence[Held], prior: Prior) -> float:
    return fmean(math.log(held.off(prior)) for held in some)


def main() -> None:
    every, constant = list(held_rates()), with_exponent(0.0)
    with_mup = group(every, "width, mup")
    lines = ["# Best rates of the published ladders, predicted again with other priors", "",
             "Made by `python -m benchmarks.rate_priors` from ladder-NAME.csv. The cells contain "
             "the median error factor, and how many values lie inside the 80 % interval.", "",
             *table(every), "",
             "Over the width with mup, a prior of 0 ± 0.3 would give "
             f"{tested(with_mup, lambda held: constant)}.", "",
             "The exponent over the width, standard parametrisation, chosen on the other ladders:",
             "", *left_out(every)]  # fmt: skip
    (RESULTS / "rate-priors.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
