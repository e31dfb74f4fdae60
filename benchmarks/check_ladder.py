"""Recompute the numbers of a ladder's page from the files of its runs.

    python -m benchmarks.check_ladder runs/ladder-tiny

This imports nothing of the package. It recomputes best rates, losses, largest stable rates,
sensitivities and measured quantities from the cells of each rung, then the laws, then the
predictions of held-out rungs. It compares all of them with forecast.json, the source of the
page's tables and figures. A prediction keeps the points it was fitted to: if runs were added to a
smaller size afterwards, the points are no longer those of the runs, and the script says so.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

from scipy.stats import t

from benchmarks.recomputed import Check, read_runs, row_of, words_of

FACTOR = math.log(3)
Rung = dict[str, dict[str, Any]]
Point = tuple[int, float, float | None]  # size, value, standard error of the logarithm


def vertex(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the minimum of the parabola through three points, each (log rate, log loss).

    Returns the lowest point where that is not the middle one.
    """
    (a, fa), (b, fb), (c, fc) = points
    over = (b - a) ** 2 * (fb - fc) - (b - c) ** 2 * (fb - fa)
    under = (b - a) * (fb - fc) - (b - c) * (fb - fa)
    lowest = min(points, key=lambda point: point[1])
    if fb > min(fa, fc) or under == 0:
        return lowest
    place = b - over / under / 2
    lagrange = (
        fa * (place - b) * (place - c) / (a - b) / (a - c)
        + fb * (place - a) * (place - c) / (b - a) / (b - c)
        + fc * (place - a) * (place - b) / (c - a) / (c - b)
    )
    return place, lagrange


def sum_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of one row's rates; nothing if it learned at no rate."""
    every = list(dict.fromkeys(run["seed"] for run in runs))
    runs = [run for run in runs if run["status"] != "missing"]
    rates = sorted({float(run["learning_rate"]) for run in runs})
    at = {rate: sorted((r for r in runs if float(r["learning_rate"]) == rate),
                       key=lambda r: r["seed"]) for rate in rates}  # fmt: skip
    good = [rate for rate in rates if all(r["status"] == "finished" for r in at[rate])]
    best, full, most = None, {}, 0
    # The first seeds, as many as the best rate and both its neighbours have.
    for most in range(max((len(at[rate]) for rate in good), default=0), 0, -1):
        held = {rate: {r["seed"]: None if r["loss"] is None else max(r["loss"], 1e-9)
                       for r in at[rate]} for rate in rates}  # fmt: skip
        full = {rate: [by[seed] for seed in every[:most]] for rate, by in held.items()
                if all(by.get(seed) is not None for seed in every[:most])}  # fmt: skip
        best = min((r for r in good if r in full), key=lambda r: fmean(full[r]), default=None)
        if best is not None:
            beside = rates[: rates.index(best)][-1:] + rates[rates.index(best) + 1 :][:1]
            if full.keys() >= {*beside} & {*good}:
                break
    if best is None:
        return {}
    above = [rate for rate in rates if rate > best]
    below = [rate for rate in reversed(rates) if rate < best]
    near = [best]
    lowest = fmean(full[best])
    for side in (below, above):
        near += itertools.takewhile(lambda r: r in full and fmean(full[r]) >= lowest, side)
    full = {rate: full[rate] for rate in near}
    best_rate, loss = at_the_minimum(full, best, bool(above and below))
    stable = list(itertools.takewhile(
        lambda rate: all(r["status"] == "finished" for r in at[rate]),
        [rate for rate in rates if rate >= best],
    ))  # fmt: skip
    failed = next((rate for rate in above if rate > stable[-1]), None)
    return {
        "best_rate": best_rate, "loss": loss, "best_tried": best,
        "largest_stable": stable[-1], "next_failed": failed, "seed_losses": full[best],
    }  # fmt: skip


def at_the_minimum(
    full: dict[float, list[float]], best: float, between: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the best rate and its loss, from the losses of the seeds at each rate.

    Without a rate on each side of the best one, this is the best rate itself. Its error depends on
    whether rates were tried on both sides.
    """
    rates = sorted(full)
    place, seeds = rates.index(best), len(full[best])
    inside = 0 < place < len(rates) - 1
    rates = rates[place - 1 : place + 2] if inside else [best]
    # All samples of the seeds; the ladder draws random ones of more than five.
    several = 1 < seeds <= 5
    samples = itertools.product(range(seeds), repeat=seeds) if several else ()
    minima = []
    for sample in (range(seeds), *samples):
        means = {rate: fmean(full[rate][seed] for seed in sample) for rate in rates}
        points = [(math.log(rate), math.log(mean)) for rate, mean in means.items()]
        minima.append(vertex(points) if inside else points[0])
    (log_rate, log_loss), *drawn = minima
    rate_error = loss_error = None
    if several:
        grown = math.sqrt(seeds / (seeds - 1))
        rate_error, loss_error = (grown * pstdev(values) for values in zip(*drawn, strict=True))
    freedom = math.inf
    if inside and seeds > 1:
        freedom = seeds - 1
    elif inside:
        rate_error = math.log(rates[2] / rates[0]) / 2 / math.sqrt(12)
    else:
        rate_error = FACTOR / math.sqrt(12) if between else FACTOR
    return interval(log_rate, rate_error, freedom), interval(log_loss, loss_error, seeds - 1)


def interval(log: float, error: float | None, freedom: float) -> dict[str, float]:
    """Return a value, its error and the ends of its interval; only the value without an error."""
    if error is None:
        return {"value": math.exp(log)}
    half = error * t.ppf(0.9, freedom)
    ends = {"value": log, "low": log - half, "high": log + half}
    return {**{name: math.exp(end) for name, end in ends.items()}, "error": error}


def measured(runs: list[Path]) -> dict[str, float]:
    """Return the geometric means over seeds of the recorded quantities."""
    kept: dict[str, list[float]] = {}
    for run in runs:
        rows = [json.loads(line) for line in (run / "probe.jsonl").read_text().splitlines()]
        layers = [layer for row in rows for layer in row["layers"]]
        watched = {
            "attention_logit": max((layer["attention_logit_max"] or 0 for layer in layers),
                                   default=0),
            "top_rms": max((row["layers"][-1]["activation_rms"] or 0 for row in rows), default=0),
            "embedding_gradient": min((row["embedding_gradient_rms"] or math.inf for row in rows),
                                      default=0),
            "update": max((fmean(layer["update_ratio"] or 0 for layer in row["layers"])
                           for row in rows), default=0),
        }  # fmt: skip
        for name, value in watched.items():
            if 0 < value < math.inf:
                kept.setdefault(name, []).append(math.log(value))
    return {name: math.exp(fmean(logs)) for name, logs in kept.items()}


def sensitivity(runs: list[dict[str, Any]], seed: int, over: list[float]) -> float | None:
    """Return the mean excess of the capped loss, integrated over the log rate by trapezoids."""
    points = sorted(
        (math.log(run["learning_rate"]),
         run["first"] if run["loss"] is None else min(run["loss"], run["first"]))
        for run in runs
        if run["seed"] == seed and run["status"] != "missing"
        and over[0] <= run["learning_rate"] <= over[1]
    )  # fmt: skip
    if len(points) < 2:
        return None
    area = sum((b - a) * (f + g) / 2 for (a, f), (b, g) in itertools.pairwise(points))
    return area / (points[-1][0] - points[0][0]) - min(f for _, f in points)


def law(points: list[Point], prediction: dict[str, Any], kind: str) -> dict[str, float]:
    """Return the prediction of a law, from its normal equations.

    Args:
        points: The points of the law.
        prediction: Its size and priors are used.
        kind: Key of its priors; the values of "gaps" are not logarithms.
    """
    size, prior = prediction["size"], prediction["priors"][kind]
    spread, scatter, rungs = (prior[name] for name in ("spread", "scatter", "weight"))
    logs = kind != "gaps"
    x = [math.log(s) for s, _, _ in points]
    y = [math.log(v) if logs else v for _, v, _ in points]
    count, middle = len(x), fmean(x)
    x = [value - middle for value in x]
    noise = scatter**2 + fmean((error or 0.0) ** 2 for _, _, error in points)
    free, rest = max(count - 2, 0), 0.0
    across = sum(a * a for a in x)
    if free:
        slope = sum(a * b for a, b in zip(x, y, strict=True)) / across
        rest = sum((b - fmean(y) - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    variance = (rungs * noise + rest) / (rungs + free)
    # The sizes are centred, so that level and exponent are independent.
    weight = across / variance + spread**-2
    product = sum(a * b for a, b in zip(x, y, strict=True))
    exponent = (product / variance + prior["exponent"] / spread**2) / weight
    at = math.log(size) - middle
    half = t.ppf(0.9, rungs + free) * math.sqrt(
        variance / count + at**2 / weight + variance
    )  # fmt: skip
    value = fmean(y) + exponent * at
    ends = {"value": value, "low": value - half, "high": value + half}
    shown = {name: math.exp(end) if logs else end for name, end in ends.items()}
    return {**shown, "exponent": exponent}


def compare(check: Check, where: str, reported: float | None, found: float | None) -> None:
    """Compare one number with another, to a relative tolerance."""
    if reported is None or found is None:
        check.record(reported is found, where, reported, found)
    else:
        same = math.isclose(reported, found, rel_tol=1e-6, abs_tol=1e-9)
        check.record(same, where, reported, found)


def check_rung(check: Check, folder: Path, about: dict[str, Any], rung: dict[str, Any]) -> None:
    place = folder / "rungs" / f"{about['axis']}-{rung['size']}"
    runs = list(read_runs(place, rung))
    cells = json.loads((place / "sweep.json").read_text())["further"]
    for row, reported in rung["rows"].items():
        where = f"{about['axis']} {rung['size']}, {row}"
        mine = [run for run in runs if run["placement"] == row]
        found = sum_up(mine)
        if not found:
            compare(check, where, reported.get("best_tried"), None)
            continue
        for name in ("best_rate", "loss"):
            for part, value in found[name].items():
                compare(check, f"{where}, {name}, {part}", reported[name][part], value)
        for name in ("best_tried", "largest_stable", "next_failed"):
            compare(check, f"{where}, {name}", reported[name], found[name])
        if reported.get("sensitivity") is not None:
            over = reported["sensitivity_over"]
            value = sensitivity(mine, reported["cells"][0]["seed"], over)
            compare(check, f"{where}, sensitivity", reported["sensitivity"], value)
        at_best = [
            place / "cells" / words_of(cell)
            for cell in cells
            if row_of(cell) == row and cell["training.learning_rate"] == found["best_tried"]
        ]
        for name, value in measured(at_best).items():
            compare(check, f"{where}, {name}", reported["measured"][name]["value"], value)


def laws_of(prediction: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield the row, the quantity, the kind of prior and the content of each law."""
    for row, reported in prediction["rows"].items():
        for name in ("best_rate", "loss", "stable_rate"):
            if reported[name]:
                kind = reported["rate_prior"] if name == "best_rate" else name
                yield row, name, kind, reported[name]
        for name, one in reported["measured"].items():
            yield row, name, "measured", one
        for other, one in reported["gaps"].items():
            yield row, other, "gaps", one


def point_of(rung: dict[str, Any], row: str, name: str, kind: str) -> Point | None:
    """Return the point of a law at one rung; None without a value."""
    part = rung["rows"][row]
    if kind != "gaps":
        found = part["measured"][name] if kind == "measured" else part[name]
        return (rung["size"], found["value"], found["error"]) if found else None
    other = rung["rows"][name]
    ours, theirs = part["seed_losses"], other["seed_losses"]
    logs = [math.log(q / p) for p, q in zip(ours, theirs, strict=False)]
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.01 * math.sqrt(2)
    gap = math.log(other["loss"]["value"] / part["loss"]["value"])
    # The row with more seeds counts with those of the other row.
    gap += math.log(fmean(theirs[: len(logs)]) / fmean(theirs))
    gap -= math.log(fmean(ours[: len(logs)]) / fmean(ours))
    return rung["size"], gap, error


def check_laws(check: Check, where: str, prediction: dict[str, Any]) -> None:
    """Compare the predictions with laws fitted to their points."""
    for row, name, kind, one in laws_of(prediction):
        for end, value in law(one["points"], prediction, kind).items():
            compare(check, f"{where}, {row}, {name}, {end}", one[end], value)


def check_points(
    check: Check, where: str, prediction: dict[str, Any], rungs: list[dict[str, Any]]
) -> None:
    """Compare the points of the laws with the results of the rungs."""
    for row, name, kind, one in laws_of(prediction):
        points = [point_of(rung, row, name, kind) for rung in rungs]
        found = [[value and round(value, 12) for value in point] for point in points if point]
        kept = [[value and round(value, 12) for value in point] for point in one["points"]]
        check.record(kept == found, f"{where}, {row}, {name}, points", kept, found)


def later_runs(prediction: Path, folder: Path, axis: str, rungs: list[dict[str, Any]]) -> bool:
    """Return whether a run of the smaller sizes ended after the prediction was written."""
    ends = (
        outcome.stat().st_mtime_ns
        for rung in rungs
        for outcome in (folder / "rungs" / f"{axis}-{rung['size']}").glob("cells/*/outcome.json")
    )
    return max(ends) > prediction.stat().st_mtime_ns


def check_folder(folder: Path) -> Check:
    about = json.loads((folder / "forecast.json").read_text())
    check = Check()
    for rung in about["rungs"]:
        check_rung(check, folder, about, rung)
    check_laws(check, f"{about['axis']} {about['target']}", about["forecast"])
    check_points(check, f"{about['axis']} {about['target']}", about["forecast"], about["rungs"])
    for path in sorted((folder / "forecasts").glob("*.json")):
        prediction = json.loads(path.read_text())
        below = [rung for rung in about["rungs"] if rung["size"] in prediction["from"]]
        check_laws(check, path.stem, prediction)
        if later_runs(path, folder, about["axis"], below):
            print(f"{path.stem}: runs were added to smaller sizes after the prediction; its points "
                  "are not compared with the runs")  # fmt: skip
        else:
            check_points(check, path.stem, prediction, below)
        reported = [entry for entry in about["held_out"] if entry["size"] == prediction["size"]]
        for entry in reported:
            row, other = entry["row"], entry.get("against")
            law = (
                prediction["rows"][other]["gaps"][row]
                if other
                else prediction["rows"][row][entry["what"]]
            )
            kept = {end: math.exp(law[end]) if other else law[end] for end in ("low", "high")}
            held = (
                entry["measured"] is not None and kept["low"] <= entry["measured"] <= kept["high"]
            )
            compare(check, f"{path.stem}, {entry['row']}, {entry['what']}", entry["holds"], held)
    return check


if __name__ == "__main__":
    sys.exit(check_folder(Path(sys.argv[1])).print())
