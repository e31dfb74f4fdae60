"""Forecasts of a ladder for larger sizes, and their comparison with later results.

Every dependence on size is fitted by a power law (`magneto.lab.trend`). Before a size is trained,
its results are forecast from the smaller sizes. The report compares each forecast with the later
results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median, stdev
from typing import Any

from magneto.lab.outcome import title_of
from magneto.lab.rung import ONE_SEED, QUANTITIES, Quantity, learned, why_no_best_rate
from magneto.lab.trend import Law, Prior, fit_law, reaches

# A model whose loss is within this share of the baseline has barely begun to learn.
PLATEAU = 0.1
RATE_MARGIN = Quantity("rate", "largest stable rate divided by best rate", 1.0, False,
                       "the best rate is above the largest stable rate")  # fmt: skip
# Priors of the power laws. The best rate is between constant and proportional to 1/size. Over the
# width, with the standard parametrisation and AdamW, it is near 1/width. This is the factor of
# Adam's rates of hidden matrices in maximal update parametrisation (arXiv 2203.03466), and most
# published ladders agree (benchmarks/results/rate-priors.md). The loss falls slowly with size. A
# gap between two rows may grow or shrink. The scatter of stable rates and the spread and scatter of
# losses are such that 80 % intervals had that coverage on the sizes of docs/results/ladder.md;
# narrower ones did not.
PRIORS = {
    "best_rate": Prior(-0.5, 0.5, 0.3),
    "best_rate_by_width": Prior(-1.0, 0.3, 0.3),
    "stable_rate": Prior(-0.5, 0.5, 0.5),
    "loss": Prior(-0.05, 0.3, 0.02),
    "gaps": Prior(0.0, 0.02, 0.005),
    "measured": Prior(0.0, 1.0, 0.3),
}


def forecast(
    rungs: Sequence[Mapping[str, Any]], size: int, rate_priors: Mapping[str, str]
) -> dict[str, Any]:
    """Forecast the results at a larger `size` from the results at smaller sizes.

    `rungs` are outputs of `read_rung`, the smallest size first. `rate_priors` gives for each row
    the key of its best rate's prior in `PRIORS`.

    Returns:
        "size", "from" (the smaller sizes), "priors" (of the power laws) and "rows". "rows" has
        these entries for each row that learned at every size:

        - "best_rate", "loss": laws (`Law`).
        - "rate_prior": key of the best rate's prior.
        - "stable_rate": a law, or None if no rate failed.
        - "measured": the law of each quantity in `QUANTITIES`, by name.
        - "stable_below": largest stable rate at the largest size in "from".
        - "trivial_rates": two simple guesses of the best rate, by name.
        - "gaps": for each other row, the law of log(loss of the other row / loss of this row).
    """
    last = rungs[-1]
    able = [row for row in last["rows"] if all(learned(rung, row) for rung in rungs)]
    rows = {}
    for row in able:
        results = [rung["rows"][row] for rung in rungs]
        placed = [(rung["size"], shown) for rung, shown in zip(rungs, results, strict=True)]
        stable = [(s, shown["stable_rate"]) for s, shown in placed if shown["stable_rate"]]
        measured = {
            one.name: law_of([(s, shown["measured"][one.name]) for s, shown in placed], size,
                             PRIORS["measured"])
            for one in QUANTITIES
            if all(one.name in shown["measured"] for shown in results)
        }  # fmt: skip
        rate = results[-1]["best_rate"]["value"]
        rows[row] = {
            **{what: law_of([(s, shown[what]) for s, shown in placed], size, PRIORS[prior])
               for what, prior in (("best_rate", rate_priors[row]), ("loss", "loss"))},
            "rate_prior": rate_priors[row],
            "stable_rate": law_of(stable, size, PRIORS["stable_rate"]) if stable else None,
            "stable_below": results[-1]["largest_stable"],
            "measured": measured,
            "trivial_rates": {"rate of the next smaller size": rate,
                              "rate extrapolated as 1/size from the next smaller size":
                              rate * last["size"] / size},
            "gaps": {other: gap_law(rungs, row, other, size) for other in able if other != row},
        }  # fmt: skip
    return {
        "size": size,
        "from": [rung["size"] for rung in rungs],
        "priors": {what: asdict(prior) for what, prior in PRIORS.items()},
        "rows": rows,
    }


def law_of(points: Sequence[tuple[int, Mapping[str, float]]], size: int, prior: Prior) -> Law:
    return fit_law([(s, pair["value"], pair["error"]) for s, pair in points], size, prior)


def gap_law(rungs: Sequence[Mapping[str, Any]], row: str, other: str, size: int) -> Law:
    """Fit log(loss of `other` / loss of `row`) as a function of size.

    The standard errors come from the ratios of losses with the same seed.
    """
    points = []
    for rung in rungs:
        mine, theirs = rung["rows"][row], rung["rows"][other]
        gap = log_ratio(mine, theirs)
        both = zip(mine["seed_losses"], theirs["seed_losses"], strict=False)
        pairs = [math.log(b / a) for a, b in both]
        several = len(pairs) > 1
        error = stdev(pairs) / math.sqrt(len(pairs)) if several else ONE_SEED * math.sqrt(2)
        points.append((rung["size"], gap, error))
    return fit_law(points, size, PRIORS["gaps"], logs=False)


def log_ratio(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Return log(their loss / my loss) for two rows, from the seeds that both rows have.

    If a row has more seeds than the other, its loss is multiplied by the ratio of two means at its
    best tested rate: the mean over the common seeds and the mean over all of its seeds.
    """
    count = min(len(part["seed_losses"]) for part in (mine, theirs))
    first, second = (part["loss"]["value"] * fmean(part["seed_losses"][:count])
                     / fmean(part["seed_losses"]) for part in (mine, theirs))  # fmt: skip
    return math.log(second / first)


def held_out(rung: Mapping[str, Any], prediction: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for row, laws in prediction["rows"].items():
        if rung["rows"][row].get("waiting"):
            continue
        if not learned(rung, row):
            rows.append({"row": row, "what": "best_rate", **compared(laws["best_rate"], None)})
            continue
        results = rung["rows"][row]
        for what in ("best_rate", "stable_rate", "loss"):
            if laws[what] is None or results[what] is None:
                continue
            truth = results[what]["value"]
            entry = {"row": row, "what": what, **compared(laws[what], truth)}
            if what == "best_rate":
                entry["trivial_rates"] = {
                    name: {"value": rate, "off": error_factor(rate, truth)}
                    for name, rate in laws["trivial_rates"].items()
                }
            rows.append(entry)
    rows += held_out_gaps(rung, prediction["rows"])
    for entry in rows:
        entry |= {"size": rung["size"], "from": prediction["from"]}
    return rows


def held_out_gaps(rung: Mapping[str, Any], laws: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """For each row after the first, compare (its loss / the first row's loss) with the forecast."""
    able = [row for row in laws if learned(rung, row) and not rung["rows"][row].get("waiting")]
    first, *others = able or [""]
    for row in others:
        law = laws[first]["gaps"][row]
        ratios = {end: math.exp(law[end]) for end in ("value", "low", "high")}
        truth = math.exp(log_ratio(rung["rows"][first], rung["rows"][row]))
        yield {"row": row, "against": first, "what": "gap", **compared(ratios, truth)}


def compared(law: Mapping[str, float], truth: float | None) -> dict[str, Any]:
    """Compare a forecast with the measured value, `truth` (None if the row did not learn)."""
    low, value, high = (law[end] for end in ("low", "value", "high"))
    found = {"value": value, "low": low, "high": high, "measured": truth, "holds": False}
    if truth is None:
        return found
    return {**found, "holds": low <= truth <= high, "off": error_factor(value, truth)}


def error_factor(value: float, truth: float) -> float:
    """Return the larger of two positive numbers divided by the smaller."""
    return max(value, truth) / min(value, truth)


def expected_failures(
    rungs: Sequence[Mapping[str, Any]], laws: Mapping[str, Any], size: int
) -> list[dict]:
    """Return each quantity that has a limit, ordered by the size at which it reaches the limit.

    `laws` are the forecast laws of one row (see `forecast`). `size` is the target size.
    """
    watched = {one: laws["measured"][one.name] for one in QUANTITIES
               if one.name in laws["measured"]}  # fmt: skip
    if laws["stable_rate"]:
        best, stable = laws["best_rate"], laws["stable_rate"]
        watched[RATE_MARGIN] = {
            "value": stable["value"] / best["value"],
            "low": stable["low"] / best["high"], "high": stable["high"] / best["low"],
            "exponent": stable["exponent"] - best["exponent"],
        }  # fmt: skip
    found, smallest = [], float(rungs[0]["size"])
    for one, law in watched.items():
        limit = rungs[-1]["adam_eps"] if one.name == "embedding_gradient" else one.limit
        if limit is None:
            continue
        at = reaches(law, limit, size)
        share = law["value"] / limit if one.above else limit / law["value"]
        towards = at is not None and (law["exponent"] > 0) == one.above
        found.append({
            "name": one.name, "title": one.title, "trouble": one.trouble, "limit": limit,
            **{name: law[name] for name in ("value", "low", "high", "exponent")},
            "share": share,
            "size": max(at, smallest) if at and towards else smallest if share >= 1 else None,
            "before_target": share >= 1,
        })  # fmt: skip
    return sorted(found, key=lambda entry: entry["size"] or math.inf)


def answer(
    axis: str,
    size: int,
    prediction: Mapping[str, Any],
    troubles: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[str]:
    """Return the forecast for the target size as sentences, the main sentence first.

    Rows are compared by the ratio of their loss to the first row's loss. The best row has the
    lowest forecast of this ratio.
    """
    rows = prediction["rows"]
    if not rows:
        return ["There is no forecast, because no row has a best rate at every size."]
    base = next(iter(rows))
    first = min(rows, key=lambda row: rows[base]["gaps"][row]["value"] if row != base else 0.0)
    rate, loss = rows[first]["best_rate"], rows[first]["loss"]
    claim = "reaches loss" if len(rows) == 1 else "has the lowest loss,"
    lines = [f"Forecast for {axis} {size}, with 80 % intervals: {title_of(first)} {claim} "
             f"{spread(loss)} at learning rate {spread(rate)}."]  # fmt: skip
    kinds: dict[str, list[str]] = {"Possibly as good": [], "Worse": []}
    for other, law in rows[first]["gaps"].items():
        unsure = law["low"] <= 0 or rows[other]["loss"]["value"] < loss["value"]
        kind = "Possibly as good" if unsure else "Worse"
        part = (f"{title_of(other)} ({percent(law['value'])} loss, {percent(law['low'])} to "
                f"{percent(law['high'])}; {trend(law)})")  # fmt: skip
        kinds[kind].append(part)
    lines += [f"{kind}: {', '.join(parts)}." for kind, parts in kinds.items() if parts]
    rates = ", ".join(f"{title_of(row)} {spread(found['best_rate'])}"
                      for row, found in rows.items() if row != first)  # fmt: skip
    if rates:
        lines.append(f"Best learning rates of the others: {rates}.")
    stable = [f"{title_of(row)} {spread(found['stable_rate'])}"
              for row, found in rows.items() if found["stable_rate"]]  # fmt: skip
    if stable:
        lines.append(f"Largest stable learning rates: {', '.join(stable)}.")
    return lines + [first_failure_text(axis, size, row, troubles[row]) for row in rows]


def first_failure_text(axis: str, size: int, row: str, found: Sequence[Mapping[str, Any]]) -> str:
    title = title_of(row)
    if not found:
        return f"{title}: no failure can be forecast, because no measured quantity has a limit."
    reached = [entry for entry in found if entry["before_target"]]
    one = reached[0] if reached else max(found, key=lambda entry: entry["share"])
    value = (f"{one['title']} {one['value']:.2g} ({one['low']:.2g} to {one['high']:.2g}), limit "
             f"{one['limit']:.2g}, growth as {axis}^{one['exponent']:.2f}")  # fmt: skip
    if reached:
        return (f"{title}: the first failure is expected at {axis} {one['size']:.0f}, because "
                f"{one['trouble']} (forecast for {axis} {size}: {value}).")  # fmt: skip
    return (f"{title}: every measured quantity is expected to stay within its limit up to {axis} "
            f"{size}. The quantity nearest to its limit is the {value}.")  # fmt: skip


def trend(law: Mapping[str, float]) -> str:
    if law["exponent_low"] > 0:
        return "the gap grows with size"
    if law["exponent_high"] < 0:
        return "the gap shrinks with size"
    return "no clear trend with size"


def spread(law: Mapping[str, float], digits: int = 3) -> str:
    low, value, high = (f"{law[name]:.{digits}g}" for name in ("low", "value", "high"))
    return f"{value} ({low} to {high})"


def percent(gap: float) -> str:
    return f"{100 * math.expm1(gap):+.1f} %"


def limitations(
    axis: str, target: int, rungs: Sequence[Mapping[str, Any]], prediction: Mapping[str, Any]
) -> list[str]:
    lines = []
    if len(rungs) < 3:
        lines.append(f"With fewer than three sizes ({len(rungs)}), exponents stay near an assumed "
                     "value, and intervals are wide.")  # fmt: skip
    far = target / rungs[-1]["size"]
    if far > 4:
        lines.append(f"The target is {far:.3g} times the largest trained size. No power law is "
                     "known to hold that far.")  # fmt: skip
    learned_at = [(f"{title_of(row)} at {rung['size']}", rung, found) for rung in rungs
                  for row, found in rung["rows"].items() if learned(rung, row)]  # fmt: skip
    edges: dict[str, list[str]] = {}
    for where, _, found in learned_at:
        edges.setdefault(found["edge"], []).append(where)
    for edge in sorted(edges.keys() - {""}):
        reason = f"the best rate is the {edge} tested rate"
        if edge == "stability":
            reason = "a run failed or is missing at a rate next to the best rate"
        lines.append(
            f"No parabola was fitted to the losses of {', '.join(edges[edge])}, because {reason}."
        )
    partial = [where for where, _, found in learned_at if found.get("waiting")]
    if partial:
        lines.append(f"Some runs of {', '.join(partial)} are missing, so these results may change.")
    for row in rungs[-1]["rows"]:
        if reasons := why_no_forecast(axis, rungs, row):
            lines.append(f"{title_of(row)} has no forecast, because it {' and '.join(reasons)}.")
        elif prediction["rows"].get(row) and not prediction["rows"][row]["stable_rate"]:
            lines.append(f"The largest stable rate of {title_of(row)} is unknown, because no rate "
                         "failed.")  # fmt: skip
    losses = {row: found["loss"]["value"] for row, found in prediction["rows"].items()}
    disagree = [
        f"{title_of(row)} and {title_of(other)}"
        for row, found in prediction["rows"].items()
        for other, gap in found["gaps"].items()
        if gap["value"] > 0 and losses[other] < losses[row]
    ]
    if disagree:
        lines.append("For these pairs, the forecast losses and the forecast ratio of the losses "
                     f"disagree on which loss is lower: {', '.join(disagree)}.")  # fmt: skip
    seeds = min((found["seeds"] for _, _, found in learned_at), default=0)
    if seeds == 1:
        lines.append("One seed gives no measure of noise, so intervals assume a noise level.")
    if seeds:
        lines.append("The true limit of stability lies between a row's largest stable rate and the "
                     "next larger tested rate. Rates other than the best and its neighbours may "
                     "have been tested with a single seed.")  # fmt: skip
    near = [where for where, rung, found in learned_at if rung["baseline_loss"]
            and found["loss"]["value"] > (1 - PLATEAU) * rung["baseline_loss"]]  # fmt: skip
    if near:
        lines.append(f"These losses are within {PLATEAU:.0%} of the trivial baseline's loss: "
                     f"{', '.join(near)}. Such losses show only which row starts to "
                     "learn first.")  # fmt: skip
    return lines


def why_no_forecast(axis: str, rungs: Sequence[Mapping[str, Any]], row: str) -> list[str]:
    sizes: dict[str, list[str]] = {}
    for rung in rungs:
        if not learned(rung, row):
            reason = why_no_best_rate(rung["rows"].get(row))
            sizes.setdefault(reason, []).append(str(rung["size"]))
    return [f"{reason} at {axis} {', '.join(some)}" for reason, some in sizes.items()]


def held_out_text(entries: Sequence[Mapping[str, Any]]) -> str:
    if not entries:
        return "No size was forecast before its models were trained."
    holds = sum(entry["holds"] for entry in entries)
    text = (f"{len(entries)} values were forecast before the models that they describe were "
            f"trained. For {holds} of them, the measured value lay in the forecast's 80 % "
            "interval.")  # fmt: skip
    rates = [entry for entry in entries if entry.get("trivial_rates")]
    if rates:
        errors = {"forecast": median(entry["off"] for entry in rates)}
        for name in rates[0]["trivial_rates"]:
            errors[name] = median(entry["trivial_rates"][name]["off"] for entry in rates)
        listed = ", ".join(f"{value:.2f} for the {name}" for name, value in errors.items())
        text += f" The median error of the best rate was a factor of {listed}."
    return text
