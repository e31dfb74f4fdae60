"""What the rungs of a ladder show, read from their folders alone, and what they foretell.

A rung is read from sweep.json, rung.json and each cell's outcome.json and probe.jsonl. Everything
that depends on size is a power law (`trend`); what a larger rung will show is foretold from the
rungs below it, and held against it once it is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from magneto.files import read_object
from magneto.lab.grid import RATE, Cell, cell_directory, read_sweep
from magneto.lab.outcome import FINISHED, MISSING, Judge, Scored, score_cell, title_of
from magneto.lab.probe import PROBE_FILE
from magneto.lab.trend import Law, Prior, find_vertex, fit_law, reaches
from magneto.lab.verdict import HALF_FP16, THRESHOLDS

RUNG_FILE = "rung.json"
# Standard errors of log rates: where the best rate is at the end of those tried, where the next one
# fails, and of a rate known to lie between two that were tried, a factor of 3 apart.
AT_EDGE, BETWEEN = math.log(3), math.log(3) / math.sqrt(12)
# A loss within this share of the baseline is of a model that has hardly begun to learn.
PLATEAU = 0.1
# Standard deviation of a loss's logarithm over seeds where one seed shows none: what the five seeds
# of docs/reports/placements-24 have at their best rates.
ONE_SEED = 0.01


@dataclass(frozen=True)
class Quantity:
    """Something measured that foretells trouble.

    Attributes:
        name: In files.
        title: In sentences and figures.
        limit: From where on there is trouble; None where nobody knows. A share of it is meant for
            the optimizer's epsilon, which the recipe sets.
        above: Whether the trouble lies above the limit.
        trouble: What would break.
    """

    name: str
    title: str
    limit: float | None
    above: bool
    trouble: str


# The limit of logits is the size beyond which Wortsman et al. (arXiv 2309.14322) saw runs diverge,
# and epsilon's is theirs too; the others are those of the probe.
QUANTITIES = (
    Quantity("attention_logit", "largest attention logit", 1e4, True, "attention logits diverge"),
    Quantity("top_rms", "RMS of activations at the top", HALF_FP16, True,
             "activations leave the range of fp16"),
    Quantity("embedding_gradient", "RMS of the gradient at the embedding", None, False,
             "gradients at the embedding fall to Adam's epsilon"),
    Quantity("update", "relative update of weights", THRESHOLDS["update"].undecided, True,
             "a step changes weights by a tenth"),
    Quantity("update_to_bound", "update over the theory's bound", None, True, ""),
)  # fmt: skip
# What is assumed of a law before a rung is seen. Rates: between no change with size and 1/size. A
# loss falls slowly with size; a gap between two rows may go either way.
RATES = Prior(-0.5, 0.5, 0.3)
LOSS, GAP = Prior(-0.05, 0.1, 0.01), Prior(0.0, 0.02, 0.005)
SENSITIVITY, MEASURED = Prior(0.0, 0.5, 0.5), Prior(0.0, 1.0, 0.3)


def read_rung(place: Path, size: int) -> dict[str, Any]:
    """Return what one rung shows, as plain values; rows without a result are there, and empty.

    Args:
        place: Its folder.
        size: Its width or depth.
    """
    sweep, about = read_sweep(place), read_object(place / RUNG_FILE, "baseline", "metric")
    judge = Judge(about["metric"], about["higher_is_better"], about["baseline"])
    rows: dict[str, list[Cell]] = {}
    for cell in sweep.cells():
        rows.setdefault(cell.row, []).append(cell)
    found = {}
    for row, cells in rows.items():
        scored = [score_cell(place, cell, judge) for cell in cells]
        shown = sum_up(scored)
        at_best = (
            []
            if shown is None
            else [cell for cell in cells if float(cell.values[RATE]) == shown["best_tried"]]
        )
        readings = [read_probe(cell_directory(place, cell)) for cell in at_best]
        measured = {one.name: geometric([r[one.name] for r in readings if one.name in r])
                    for one in QUANTITIES}  # fmt: skip
        measured["update_to_bound"] = geometric(about["updates"].get(row, ()))
        found[row] = {
            "cells": [asdict(cell) | {"curve": []} for cell in scored],
            **(shown or {}),
            "measured": {name: pair for name, pair in measured.items() if pair},
        }
    kept = {name: value for name, value in about.items() if name != "updates"}
    return {"size": size, **kept, "rows": found}


def sum_up(cells: Sequence[Scored]) -> dict[str, Any] | None:
    """Return what a row's cells say of its best and its largest stable rate; None if none learned.

    Only rates at which every seed learned that ran there, and as many as anywhere, may be best; but
    where a budget ended before the best rate's neighbours had as many, the first seeds that they
    share decide. The largest stable rate is the largest up to which, from the best one on, every
    run learned.
    """
    done = [cell for cell in cells if cell.status != MISSING]
    losses: dict[float, dict[int, float | None]] = {}
    for cell in done:
        losses.setdefault(cell.learning_rate, {})[cell.seed] = cell.loss
    failed = {cell.learning_rate for cell in done if cell.status != FINISHED}
    good = sorted(losses.keys() - failed)
    shared = shared_seeds(losses, good)
    if shared is None:
        return None
    full, best, seeds = shared
    above = min((rate for rate in losses if rate > best), default=None)
    edge_error = AT_EDGE if above is None or above in full else BETWEEN
    vertex = find_vertex(full, best, edge_error)
    edge = "stability" if vertex.edge == "largest" and above is not None else vertex.edge
    upwards = sorted(rate for rate in losses if rate >= best)
    stable = list(takewhile(lambda rate: rate not in failed, upwards))
    following = upwards[len(stable)] if len(stable) < len(upwards) else None
    middle = math.sqrt(stable[-1] * following) if following else None
    return {
        "best_rate": {"value": vertex.rate, "low": vertex.rates[0], "high": vertex.rates[1],
                      "error": vertex.rate_error},
        "loss": {"value": vertex.loss, "low": vertex.losses[0], "high": vertex.losses[1],
                 "error": vertex.loss_error if seeds > 1 else ONE_SEED},
        "edge": edge,
        "best_tried": best,
        "seeds": seeds,
        "seed_losses": full[best],
        "largest_stable": stable[-1],
        "next_failed": following,
        "stable_rate": middle and {"value": middle, "low": stable[-1], "high": following,
                                   "error": BETWEEN},
    }  # fmt: skip


def shared_seeds(
    losses: Mapping[float, Mapping[int, float | None]], good: Sequence[float]
) -> tuple[dict[float, list[float]], float, int] | None:
    """Return the losses to compare, the best rate among them, and of how many seeds they are.

    These are the first seeds, as many as let the best rate be held against the next good one on
    either side; None where no good rate has the first one.
    """
    tried, found = sorted(losses), None
    for seeds in range(max((len(losses[rate]) for rate in good), default=0), 0, -1):
        full = of_first_seeds(losses, seeds)
        able = [rate for rate in good if rate in full]
        if not able:
            continue
        best = min(able, key=lambda rate, full=full: fmean(full[rate]))
        found = full, best, seeds
        place = tried.index(best)
        near = [rate for rate in tried[max(place - 1, 0) : place + 2] if rate in good]
        if all(rate in full for rate in near):
            break
    return found


def of_first_seeds(
    losses: Mapping[float, Mapping[int, float | None]], count: int
) -> dict[float, list[float]]:
    """Return the losses of the rates that have one for each of the first so many seeds."""
    first = sorted({seed for held in losses.values() for seed in held})[:count]
    shared = {rate: [held.get(seed) for seed in first] for rate, held in losses.items()}
    return {rate: [loss for loss in held if loss is not None] for rate, held in shared.items()
            if None not in held}  # fmt: skip


def read_probe(run: Path) -> dict[str, float]:
    """Return a run's measured quantities; nothing of a run that was not watched.

    Each is the largest over the watched steps; of the gradient it is the smallest.
    """
    path = run / PROBE_FILE
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]

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
    """Return the geometric mean of positive values, and the standard error of its logarithm."""
    logs = [math.log(value) for value in values if value and value > 0]
    if not logs:
        return None
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return {"value": math.exp(fmean(logs)), "error": error}


def sensitivity(
    cells: Iterable[Mapping[str, Any]], seed: int, low: float, high: float
) -> float | None:
    """Return the learning-rate sensitivity (arXiv 2309.14322) over a range of rates.

    It is the mean over rates, uniform in their logarithm, of the smaller of the final loss and the
    loss at initialisation, less the smallest loss of the range. Between rates that were tried the
    loss is taken to be linear; a run that failed counts as the loss at initialisation.
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
    """Put each row's sensitivity into each rung, over the rates that all rungs have tried."""
    for row in rungs[0]["rows"]:
        held = [rung["rows"][row]["cells"] for rung in rungs if row in rung["rows"]]
        if not all(held):
            continue
        seed = held[0][0]["seed"]
        rates = [sorted({c["learning_rate"] for c in cells if c["seed"] == seed}) for cells in held]
        low, high = max(r[0] for r in rates), min(r[-1] for r in rates)
        for rung in rungs:
            if row in rung["rows"]:
                found = sensitivity(rung["rows"][row]["cells"], seed, low, high)
                rung["rows"][row]["sensitivity"] = found
                rung["rows"][row]["sensitivity_over"] = [low, high]


def foretell(rungs: Sequence[Mapping[str, Any]], size: int) -> dict[str, Any]:
    """Return what rungs foretell of a larger one.

    Args:
        rungs: What `read_rung` gives, rising, at least one.
        size: The larger rung's.

    Returns:
        "size", "from" (sizes) and "rows": of each row that has learned on every rung, laws as
        mappings of `Law`'s fields: "best_rate", "loss", "stable_rate" (None where no rung saw a
        rate fail), "measured" by name; "stable_below", the largest stable rate of the last rung;
        "rivals", what two trivial rules say of the best rate; and "gaps", of each other row, the
        law of its loss over this one's (logarithms; above 0 where the other is behind).
    """
    last = rungs[-1]
    able = [row for row in last["rows"] if all(learned(rung, row) for rung in rungs)]
    rows = {}
    for row in able:
        held = [rung["rows"][row] for rung in rungs]
        placed = [(rung["size"], shown) for rung, shown in zip(rungs, held, strict=True)]
        stable = [(s, shown["stable_rate"]) for s, shown in placed if shown["stable_rate"]]
        measured = {
            one.name: law_of([(s, shown["measured"][one.name]) for s, shown in placed], size,
                             MEASURED)
            for one in QUANTITIES
            if all(one.name in shown["measured"] for shown in held)
        }  # fmt: skip
        rate = held[-1]["best_rate"]["value"]
        rows[row] = {
            "best_rate": law_of([(s, h["best_rate"]) for s, h in placed], size, RATES),
            "loss": law_of([(s, h["loss"]) for s, h in placed], size, LOSS),
            "stable_rate": law_of(stable, size, RATES) if stable else None,
            "stable_below": held[-1]["largest_stable"],
            "measured": measured,
            "rivals": {"the rate below": rate, "rate times 1/size": rate * last["size"] / size},
            "gaps": {other: gap_law(rungs, row, other, size) for other in able
                     if other != row},
        }  # fmt: skip
    return {"size": size, "from": [rung["size"] for rung in rungs], "rows": rows}


def learned(rung: Mapping[str, Any], row: str) -> bool:
    """Return whether a row of a rung has a best rate."""
    return "best_rate" in rung["rows"].get(row, {})


def law_of(
    points: Sequence[tuple[int, Mapping[str, float]]], size: int, prior: Prior
) -> dict[str, Any]:
    """Fit a law to values with errors, by size."""
    return asdict(fit_law([(s, pair["value"], pair["error"]) for s, pair in points], size, prior))


def gap_law(rungs: Sequence[Mapping[str, Any]], row: str, other: str, size: int) -> dict[str, Any]:
    """Fit how far another row's loss is above one's, as a share, over sizes; seeds are pairs."""
    points = []
    for rung in rungs:
        mine, theirs = rung["rows"][row], rung["rows"][other]
        gap = math.log(theirs["loss"]["value"] / mine["loss"]["value"])
        both = zip(mine["seed_losses"], theirs["seed_losses"], strict=False)
        pairs = [math.log(b / a) for a, b in both]
        several = len(pairs) > 1
        error = stdev(pairs) / math.sqrt(len(pairs)) if several else ONE_SEED * math.sqrt(2)
        points.append((rung["size"], gap, error))
    return asdict(fit_law(points, size, GAP, logs=False))


def held_out(rung: Mapping[str, Any], foretold: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return foretold beside measured of a rung that was foretold before it was trained."""
    rows = []
    for row, told in foretold["rows"].items():
        if not learned(rung, row):
            ends = {end: told["best_rate"][end] for end in ("value", "low", "high")}
            rows.append({"row": row, "what": "best_rate", **ends, "measured": None,
                         "holds": False})  # fmt: skip
            continue
        held = rung["rows"][row]
        for what in ("best_rate", "stable_rate", "loss"):
            if told[what] is None or held[what] is None:
                continue
            low, value, high = (told[what][end] for end in ("low", "value", "high"))
            truth = held[what]["value"]
            entry = {"row": row, "what": what, "value": value, "low": low, "high": high,
                     "measured": truth, "holds": low <= truth <= high,
                     "off": math.exp(abs(math.log(value / truth)))}  # fmt: skip
            if what == "best_rate":
                entry["rivals"] = {name: {"value": guess,
                                          "off": math.exp(abs(math.log(guess / truth)))}
                                   for name, guess in told["rivals"].items()}  # fmt: skip
            rows.append(entry)
    rows += held_out_gaps(rung, foretold["rows"])
    for entry in rows:
        entry |= {"size": rung["size"], "from": foretold["from"]}
    return rows


def held_out_gaps(rung: Mapping[str, Any], foretold: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the loss of each other row over the first row's: foretold, and measured on a rung."""
    first, *others = [row for row in foretold if learned(rung, row)] or [""]
    for row in others:
        law, mine = foretold[first]["gaps"][row], rung["rows"][first]["loss"]["value"]
        low, value, high = (math.exp(law[end]) for end in ("low", "value", "high"))
        truth = rung["rows"][row]["loss"]["value"] / mine
        yield {"row": row, "against": first, "what": "gap", "value": value, "low": low,
               "high": high, "measured": truth, "holds": low <= truth <= high,
               "off": math.exp(abs(math.log(value / truth)))}  # fmt: skip


def breaking(rungs: Sequence[Mapping[str, Any]], told: Mapping[str, Any], size: int) -> list[dict]:
    """Return what would reach its limit as size grows, the nearest first.

    Args:
        rungs: What was measured.
        told: What is foretold of one row at `size`.
        size: The target.
    """
    found = []
    for one in QUANTITIES:
        limit = rungs[-1]["adam_eps"] if one.name == "embedding_gradient" else one.limit
        if limit is None or one.name not in told["measured"]:
            continue
        law = Law(**told["measured"][one.name])
        at = reaches(law, limit, size)
        beyond = law.value >= limit if one.above else law.value <= limit
        towards = at is not None and (law.exponent > 0) == one.above
        found.append({
            "name": one.name, "title": one.title, "trouble": one.trouble, "limit": limit,
            "value": law.value, "low": law.low, "high": law.high,
            "exponent": law.exponent,
            "share": law.value / limit if one.above else limit / law.value,
            "size": at if towards else (float(rungs[0]["size"]) if beyond else None),
            "before_target": beyond,
        })  # fmt: skip
    if told["stable_rate"]:
        best, stable = told["best_rate"], told["stable_rate"]
        slope = stable["exponent"] - best["exponent"]
        apart = math.log(stable["value"] / best["value"])
        power = -apart / slope if slope < 0 else math.inf
        found.append({
            "name": "rate", "title": "largest stable rate over best rate", "limit": 1.0,
            "trouble": "the best rate is no longer stable", "value": math.exp(apart),
            "low": stable["low"] / best["high"], "high": stable["high"] / best["low"],
            "exponent": slope, "share": math.exp(-apart),
            "size": size * math.exp(power) if power < 50 else None, "before_target": apart <= 0,
        })  # fmt: skip
    return sorted(found, key=lambda entry: entry["size"] or math.inf)


def answer(
    axis: str, size: int, told: Mapping[str, Any], troubles: Mapping[str, Sequence[Mapping]]
) -> list[str]:
    """Say in sentences what is foretold of the target, the answer first.

    Args:
        axis: "width" or "depth".
        size: The target.
        told: What `foretell` gives for it.
        troubles: What `breaking` gives for each row.
    """
    rows = told["rows"]
    if not rows:
        return ["No row has learned on every rung: nothing can be foretold."]
    first = min(rows, key=lambda row: rows[row]["loss"]["value"])
    rate, loss = rows[first]["best_rate"], rows[first]["loss"]
    lead = "is foretold" if len(rows) == 1 else "is foretold to have the lowest loss"
    lines = [f"At {axis} {size} {title_of(first)} {lead}, {spread(loss)}, at learning rate "
             f"{spread(rate)}."]  # fmt: skip
    kinds: dict[str, list[str]] = {"Within noise of it": [], "Beyond noise behind it": []}
    for other, law in rows[first]["gaps"].items():
        kind = "Within noise of it" if law["low"] <= 0 else "Beyond noise behind it"
        part = (f"{title_of(other)} ({percent(law['value'])}: {percent(law['low'])} to "
                f"{percent(law['high'])}; {trend(law)})")  # fmt: skip
        kinds[kind].append(part)
    lines += [f"{kind}: {', '.join(parts)}." for kind, parts in kinds.items() if parts]
    rates = ", ".join(f"{title_of(row)} {spread(found['best_rate'])}"
                      for row, found in rows.items() if row != first)  # fmt: skip
    if rates:
        lines.append(f"Best rates of the others there: {rates}.")
    stable = [f"{title_of(row)} {spread(found['stable_rate'])}"
              for row, found in rows.items() if found["stable_rate"]]  # fmt: skip
    if stable:
        lines.append(f"Largest stable rates there: {', '.join(stable)}.")
    return lines + [first_trouble_text(axis, size, row, troubles[row]) for row in rows]


def first_trouble_text(axis: str, size: int, row: str, found: Sequence[Mapping[str, Any]]) -> str:
    """Say what would break first as a row grows, and why."""
    title = title_of(row)
    if not found:
        return f"{title}: nothing was measured that foretells trouble."
    there = [entry for entry in found if entry["before_target"]]
    one = there[0] if there else max(found, key=lambda entry: entry["share"])
    value = f"{one['title']} {one['value']:.2g} ({one['low']:.2g} to {one['high']:.2g})"
    law = f"it goes with {axis} to the power {one['exponent']:.2f}"
    if there:
        return (f"{title} breaks first by this: {one['trouble']}, at {axis} {one['size']:.0f} or "
                f"before {size} ({value}, limit {one['limit']:.2g}; {law}).")  # fmt: skip
    return (f"{title}: nothing that was measured reaches its limit by {axis} {size}; nearest is "
            f"{value}, limit {one['limit']:.2g} ({law}).")  # fmt: skip


def trend(law: Mapping[str, float]) -> str:
    """Say where a gap goes as size grows, if that is beyond its interval."""
    if law["exponent_low"] > 0:
        return "falls behind as size grows"
    if law["exponent_high"] < 0:
        return "gains as size grows"
    return "its trend over size is not resolved"


def spread(law: Mapping[str, float], digits: int = 3) -> str:
    """Write a value with its interval."""
    low, value, high = (f"{law[name]:.{digits}g}" for name in ("low", "value", "high"))
    return f"{value} ({low} to {high})"


def percent(gap: float) -> str:
    """Write the logarithm of a ratio as a difference in percent."""
    return f"{100 * math.expm1(gap):+.1f} %"


def cannot_tell(
    axis: str, target: int, rungs: Sequence[Mapping[str, Any]], told: Mapping[str, Any]
) -> list[str]:
    """Say what a ladder leaves open."""
    lines = []
    if len(rungs) < 3:
        lines.append(f"{len(rungs)} rungs fix no exponent: it is held near what is assumed "
                     "beforehand, and the intervals say so.")  # fmt: skip
    far = target / rungs[-1]["size"]
    if far > 4:
        lines.append(f"The target is {far:.3g} times the largest rung: no power law is known to "
                     "hold so far.")  # fmt: skip
    edges: dict[str, list[str]] = {}
    for rung in rungs:
        for row, found in rung["rows"].items():
            if found.get("edge"):
                edges.setdefault(found["edge"], []).append(f"{title_of(row)} at {rung['size']}")
    for edge, where in edges.items():
        why = ("is the largest at which every seed learned" if edge == "stability"
               else f"is the {edge} that was tried")  # fmt: skip
        lines.append(f"The best rate {why}, so no parabola places it: {', '.join(where)}.")
    for row in rungs[-1]["rows"]:
        failed = [str(rung["size"]) for rung in rungs if not learned(rung, row)]
        if failed:
            lines.append(f"{title_of(row)} learned at no rate at {axis} {', '.join(failed)}, so "
                         "nothing is foretold of it.")  # fmt: skip
        elif told["rows"].get(row) and not told["rows"][row]["stable_rate"]:
            lines.append(f"No rate failed with {title_of(row)}: its largest stable rate is not "
                         "known.")  # fmt: skip
    seeds = min((row["seeds"] for rung in rungs for row in rung["rows"].values() if "seeds" in row),
                default=0)  # fmt: skip
    if seeds == 1:
        lines.append("One seed shows no noise: intervals have only what is assumed of it.")
    if seeds:
        lines.append("Largest stable rates are by one seed beyond the best rate's neighbours, and "
                     "lie between two rates that were tried.")  # fmt: skip
    near = [
        f"{title_of(row)} at {rung['size']}"
        for rung in rungs
        for row, found in rung["rows"].items()
        if "loss" in found
        and rung["baseline_loss"]
        and found["loss"]["value"] > (1 - PLATEAU) * rung["baseline_loss"]
    ]
    if near:
        lines.append(f"Within {PLATEAU:.0%} of the trivial baseline's loss, where it is compared "
                     f"who leaves that plateau first: {', '.join(near)}.")  # fmt: skip
    return lines


def held_out_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """Say how what was foretold of held-out rungs stood beside what was measured."""
    if not entries:
        return "No rung was foretold before it was trained."
    holds = sum(entry["holds"] for entry in entries)
    text = (f"Of {len(entries)} values foretold of rungs before they were trained, {holds} lay in "
            "their 80 % intervals")  # fmt: skip
    rates = [entry for entry in entries if entry.get("rivals")]
    if rates:
        off = {"foretold": median(entry["off"] for entry in rates)}
        for name in rates[0]["rivals"]:
            off[name] = median(entry["rivals"][name]["off"] for entry in rates)
        said = ", ".join(f"{name} {value:.2f}" for name, value in off.items())
        text += f"; the best rate was off by a factor of, in the median: {said}"
    return text + "."
