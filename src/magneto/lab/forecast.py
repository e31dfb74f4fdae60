"""Results of a ladder at each trained size, and forecasts for larger sizes.

A size's folder contains sweep.json, rung.json, and the outcome.json and probe.jsonl of each run.
At each size, a row contains the runs that differ only in learning rate and seed. Every dependence
on size is fitted by a power law (`magneto.lab.trend`). Before a size is trained, its results are
forecast from the smaller sizes. The report compares each forecast with the later results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from magneto.config import ConfigError
from magneto.files import read_object
from magneto.lab.grid import RATE, cell_directory, read_sweep
from magneto.lab.outcome import FINISHED, MISSING, Judge, Scored, score_cell, title_of
from magneto.lab.probe import PROBE_FILE
from magneto.lab.trend import Law, Prior, find_vertex, fit_law, reaches
from magneto.lab.verdict import HALF_FP16, THRESHOLDS
from magneto.training.logging import read_rows

RUNG_FILE = "rung.json"
# Standard errors of log rates: of a best rate at the end of the tested rates, and of a rate that
# lies between two tested rates a factor of 3 apart.
AT_EDGE, BETWEEN = math.log(3), math.log(3) / math.sqrt(12)
# A model whose loss is within this share of the baseline has barely begun to learn.
PLATEAU = 0.1
# Assumed standard deviation of a loss's logarithm over seeds, used for single seeds: that of the
# five seeds of docs/reports/placements-24 at their best rates.
ONE_SEED = 0.01
# A loss of 0 has no logarithm.
SMALLEST = 1e-9


@dataclass(frozen=True)
class Quantity:
    """A measured quantity whose trend with size can predict a failure."""

    name: str
    title: str
    limit: float | None  # None if unknown, or if the recipe sets it (the optimizer's epsilon)
    above: bool  # whether failure is expected above the limit
    trouble: str


# The limits of logits and of epsilon are those of Wortsman et al. (arXiv 2309.14322), beyond which
# runs diverged; the others are the probe's.
QUANTITIES = (
    Quantity("attention_logit", "largest attention logit", 1e4, True, "attention logits diverge"),
    Quantity("top_rms", "RMS of activations at the top", HALF_FP16, True,
             "activations leave the range of fp16"),
    Quantity("embedding_gradient", "RMS of the gradient at the embedding", None, False,
             "gradients at the embedding fall below Adam's epsilon"),
    Quantity("update", "relative update of weights", THRESHOLDS["update"].undecided, True,
             "a step changes the weights by 10 %"),
    Quantity("update_to_bound", "update divided by the theory's bound", None, True, ""),
)  # fmt: skip
RATE_MARGIN = Quantity("rate", "largest stable rate divided by best rate", 1.0, False,
                       "the best rate is above the largest stable rate")  # fmt: skip
# Priors of the power laws. The best rate is between constant and proportional to 1/size. The loss
# falls slowly with size. A gap between two rows may grow or shrink. The scatter of stable rates and
# the spread and scatter of losses are such that 80 % intervals had that coverage on
# the sizes of docs/results/ladder.md; narrower ones did not.
PRIORS = {
    "best_rate": Prior(-0.5, 0.5, 0.3),
    "stable_rate": Prior(-0.5, 0.5, 0.5),
    "loss": Prior(-0.05, 0.3, 0.02),
    "gaps": Prior(0.0, 0.02, 0.005),
    "measured": Prior(0.0, 1.0, 0.3),
}


def read_rung(rung_folder: Path, size: int) -> dict[str, Any]:
    """Return the results at one size as JSON values.

    If a row learned at no rate, its best rate and its loss are missing.

    Raises:
        ConfigError: If a finished run has no validation loss.
    """
    sweep = read_sweep(rung_folder)
    about = read_object(rung_folder / RUNG_FILE, "baseline", "metric")
    judge = Judge(about["metric"], about["higher_is_better"], about["baseline"])
    found = {}
    for row, cells in sweep.rows().items():
        scored = [score_cell(rung_folder, cell, judge) for cell in cells]
        if any(cell.score is not None and cell.loss is None for cell in scored):
            raise ConfigError(["a ladder compares validation losses, but the task's metrics "
                               "contain no 'loss'; add it to the result of summarise"])  # fmt: skip
        shown = sum_up(scored)
        at_best = [c for c in cells if shown and float(c.values[RATE]) == shown["best_tried"]]
        readings = [read_probe(cell_directory(rung_folder, cell)) for cell in at_best]
        measured = {one.name: geometric([r[one.name] for r in readings if one.name in r])
                    for one in QUANTITIES}  # fmt: skip
        measured["update_to_bound"] = geometric(about["updates"].get(row, ()))
        found[row] = {
            "cells": [asdict(cell) | {"curve": []} for cell in scored],
            **(shown or {}),
            "measured": {name: pair for name, pair in measured.items() if pair},
        }
    shared = {name: value for name, value in about.items() if name != "updates"}
    return {"size": size, **shared, "rows": found}


def sum_up(cells: Sequence[Scored]) -> dict[str, Any] | None:
    """Return a row's best rate and largest stable rate; None if there is no best rate.

    At the best rate, every seed learned. A rate above the best rate is stable if all runs from the
    best rate up to this rate learned. If the budget ended early, neighbouring rates may have fewer
    seeds than the best rate. Mean losses then use only the seeds that the best rate and its
    neighbours share.
    """
    done = [cell for cell in cells if cell.status != MISSING]
    losses: dict[float, dict[int, float | None]] = {}
    for cell in done:
        loss = None if cell.loss is None else max(cell.loss, SMALLEST)
        losses.setdefault(cell.learning_rate, {})[cell.seed] = loss
    failed = {cell.learning_rate for cell in done if cell.status != FINISHED}
    good = sorted(losses.keys() - failed)
    order = list(dict.fromkeys(cell.seed for cell in cells))
    shared = shared_seeds(losses, good, order)
    if shared is None:
        return None
    full, best, seeds = shared
    # Beyond a rate without a loss, a parabola does not describe the losses.
    lost = losses.keys() - full.keys()
    full = {rate: own for rate, own in full.items()
            if not any(min(rate, best) < r < max(rate, best) for r in lost)}  # fmt: skip
    above = min((rate for rate in losses if rate > best), default=None)
    edge_error = AT_EDGE if above is None or above in full else BETWEEN
    best_rate, loss, edge = find_vertex(full, best, edge_error)
    if edge == "largest" and above is not None:
        edge = "stability"
    following = min((rate for rate in failed if rate > best), default=None)
    largest = max(rate for rate in losses if following is None or rate < following)
    middle = math.sqrt(largest * following) if following else None
    return {
        "best_rate": best_rate,
        "loss": loss if seeds > 1 else {**loss, "error": ONE_SEED},
        "edge": edge,
        "best_tried": best,
        "seeds": seeds,
        "seed_losses": full[best],
        "largest_stable": largest,
        "next_failed": following,
        "stable_rate": middle and {"value": middle, "low": largest, "high": following,
                                   "error": BETWEEN},
    }  # fmt: skip


def shared_seeds(
    losses: Mapping[float, Mapping[int, float | None]], good: Sequence[float], order: Sequence[int]
) -> tuple[dict[float, list[float]], float, int] | None:
    """Return the shared seeds' losses at each rate, the best rate, and the number of shared seeds.

    `good` contains the rates at which every run learned. The best rate is the rate in `good` with
    the lowest mean loss. The shared seeds are the first n seeds of `order`, which is the same for
    all rows. n is the largest number for which all n seeds ran at the best rate and at the
    neighbouring rates in `good`. Return None if no rate in `good` has a run of the first seed.
    """
    tried, found = sorted(losses), None
    for seeds in range(len(order), 0, -1):
        by_seed = {rate: [own.get(seed) for seed in order[:seeds]] for rate, own in losses.items()}
        full = {rate: [loss for loss in own if loss is not None] for rate, own in by_seed.items()
                if None not in own}  # fmt: skip
        able = {rate: fmean(full[rate]) for rate in good if rate in full}
        if not able:
            continue
        best = min(able, key=able.__getitem__)
        found = full, best, seeds
        index = tried.index(best)
        near = [rate for rate in tried[max(index - 1, 0) : index + 2] if rate in good]
        if all(rate in full for rate in near):
            break
    return found


def read_probe(run: Path) -> dict[str, float]:
    """Return the largest value of each quantity over a run's steps (smallest for the gradient)."""
    path = run / PROBE_FILE
    if not path.is_file():
        return {}
    rows = read_rows(path)

    def layers(name: str) -> list[float]:
        return [layer[name] for row in rows for layer in row["layers"] if layer[name]]

    found = {
        "attention_logit": max(layers("attention_logit_max"), default=None),
        "top_rms": max((row["layers"][-1]["activation_rms"] or 0 for row in rows), default=None),
        "embedding_gradient": min((row["embedding_gradient_rms"] for row in rows
                                   if row.get("embedding_gradient_rms")), default=None),
        "update": max((fmean(layer["update_ratio"] or 0 for layer in row["layers"])
                       for row in rows), default=None),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value and math.isfinite(value)}


def geometric(values: Sequence[float]) -> dict[str, float] | None:
    """Return the geometric mean of the positive values, and the standard error of its logarithm."""
    logs = [math.log(value) for value in values if value and value > 0]
    if not logs:
        return None
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {"value": math.exp(fmean(logs)), "error": error}


def sensitivity(
    cells: Iterable[Mapping[str, Any]], seed: int, low: float, high: float
) -> float | None:
    """Return the learning-rate sensitivity (arXiv 2309.14322) over the rates from `low` to `high`.

    The sensitivity is the mean loss over log-uniform rates, minus the smallest loss. Between tested
    rates, the loss is interpolated linearly. Losses are capped at the initial loss. A run without a
    final loss counts with its initial loss.
    """
    points = []
    for cell in cells:
        first = cell["initial_loss"]
        if cell["seed"] == seed and cell["status"] != MISSING and first is not None:
            loss = first if cell["loss"] is None else min(cell["loss"], first)
            if low <= cell["learning_rate"] <= high:
                points.append((math.log(cell["learning_rate"]), loss))
    points.sort()
    if len(points) < 2:
        return None
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    return area / (points[-1][0] - points[0][0]) - min(y for _, y in points)


def add_sensitivity(rungs: Sequence[Mapping[str, Any]]) -> None:
    """For each size in `rungs`, add the sensitivity of every row that learned at the size.

    The sensitivity covers the range of rates that was tested at every size.
    """
    for row in rungs[0]["rows"]:
        tables = [rung["rows"][row]["cells"] for rung in rungs if row in rung["rows"]]
        seed = next((cell["seed"] for cell in tables[0]), 0)
        done = [[c for c in cells if c["status"] != MISSING] for cells in tables]
        rates = [{c["learning_rate"] for c in cells if c["seed"] == seed} for cells in done]
        if not all(rates):
            continue
        low, high = max(map(min, rates)), min(map(max, rates))
        for rung in rungs:
            if learned(rung, row):
                found = sensitivity(rung["rows"][row]["cells"], seed, low, high)
                rung["rows"][row]["sensitivity"] = found
                rung["rows"][row]["sensitivity_over"] = [low, high]


def forecast(rungs: Sequence[Mapping[str, Any]], size: int) -> dict[str, Any]:
    """Forecast the results at a larger `size` from the results at smaller sizes.

    `rungs` are outputs of `read_rung`, the smallest size first.

    Returns:
        "size", "from" (the smaller sizes), "priors" (of the power laws) and "rows". "rows" has
        these entries for each row that learned at every size:

        - "best_rate", "loss": laws (`Law`).
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
            **{what: law_of([(s, shown[what]) for s, shown in placed], size, PRIORS[what])
               for what in ("best_rate", "loss")},
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


def learned(rung: Mapping[str, Any], row: str) -> bool:
    return "best_rate" in rung["rows"].get(row, {})


def why_no_best_rate(found: Mapping[str, Any] | None) -> str:
    """Say why a row has no best rate at a size, from its results there (None without any)."""
    if found is None or any(cell["status"] == MISSING for cell in found["cells"]):
        return "is unfinished"
    return "did not learn"


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
                    name: {"value": rate, "off": math.exp(abs(math.log(rate / truth)))}
                    for name, rate in laws["trivial_rates"].items()
                }
            rows.append(entry)
    rows += held_out_gaps(rung, prediction["rows"])
    for entry in rows:
        entry |= {"size": rung["size"], "from": prediction["from"]}
    return rows


def held_out_gaps(rung: Mapping[str, Any], laws: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """For each row after the first, compare (its loss / the first row's loss) with the forecast."""
    first, *others = [row for row in laws if learned(rung, row)] or [""]
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
    off = math.exp(abs(math.log(value / truth)))
    return {**found, "holds": low <= truth <= high, "off": off}


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
    edges: dict[str, list[str]] = {}
    for rung in rungs:
        for row, found in rung["rows"].items():
            if found.get("edge"):
                edges.setdefault(found["edge"], []).append(f"{title_of(row)} at {rung['size']}")
    for edge, where in edges.items():
        reason = ("is the largest at which every seed learned" if edge == "stability"
                  else f"is the {edge} tested rate")  # fmt: skip
        lines.append(
            f"No parabola was fitted to the losses of {', '.join(where)}, because the "
            f"best rate {reason}."
        )
    for row in rungs[-1]["rows"]:
        reasons: dict[str, list[str]] = {}
        for rung in rungs:
            if not learned(rung, row):
                reason = why_no_best_rate(rung["rows"].get(row))
                reasons.setdefault(reason, []).append(str(rung["size"]))
        if reasons:
            parts = [f"{reason} at {axis} {', '.join(at)}" for reason, at in reasons.items()]
            lines.append(f"{title_of(row)} has no forecast, because it {' and '.join(parts)}.")
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
    seeds = min((row["seeds"] for rung in rungs for row in rung["rows"].values() if "seeds" in row),
                default=0)  # fmt: skip
    if seeds == 1:
        lines.append("One seed gives no measure of noise, so intervals assume a noise level.")
    if seeds:
        lines.append("The true limit of stability lies between a row's largest stable rate and the "
                     "next larger tested rate. Rates other than the best and its neighbours may "
                     "have been tested with a single seed.")  # fmt: skip
    near = [f"{title_of(row)} at {rung['size']}"
            for rung in rungs if rung["baseline_loss"]
            for row, found in rung["rows"].items()
            if "loss" in found and found["loss"]["value"] > (1 - PLATEAU) * rung["baseline_loss"]
            ]  # fmt: skip
    if near:
        lines.append(f"These losses are within {PLATEAU:.0%} of the trivial baseline's loss: "
                     f"{', '.join(near)}. Such losses show only which row starts to "
                     "learn first.")  # fmt: skip
    return lines


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
