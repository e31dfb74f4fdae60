"""What a short run says about the training that would follow, in plain words with the number.

Nothing here knows a placement: every finding is a measured number beside a threshold. Most of the
thresholds come from a calibration, which probed and trained configurations of five tasks; its rows
and the tables made of them are in benchmarks/results/probe-calibration.*. They were chosen on its
first rows; the documentation reports the others, which were made afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from magneto.lab.probe import LayerReading
from magneto.lab.short_run import FirstStep, ShortRun

Level = Literal["sound", "not decided", "likely to fail"]
# Half of the largest finite number.
HALF_FP16, HALF_BF16 = 32752.0, 1.694e38
LEVELS: tuple[Level, ...] = ("sound", "not decided", "likely to fail")
# The change of the output whose learning rate is named, so that models can be compared.
SMALL_MOVE = 0.1


@dataclass(frozen=True)
class Threshold:
    """From where on a number is no longer sound, and from where on it foretells failure.

    Attributes:
        worse: Whether a number is worse above or below.
        undecided: First value that is not sound.
        fails: First value that foretells failure; None where no value does.
    """

    worse: Literal["above", "below"]
    undecided: float
    fails: float | None

    def level(self, value: float | None) -> Level:
        """Return what a value means; one that is no number is as bad as can be."""
        if value is None:
            return "sound"
        if self._is_better(value, self.undecided):
            return "sound"
        if self.fails is None or self._is_better(value, self.fails):
            return "not decided"
        return "likely to fail"

    def _is_better(self, value: float, limit: float) -> bool:
        return value > limit if self.worse == "below" else value < limit


# kept: of what tells positions apart in the first layer's output at initialisation, the share left
# in the last one's (mean squares, the worst stack). update: change of the layers' weights under the
# first step at the peak rate, over their norm. distinct: of the square of the last layer's output
# after the steps at the peak rate, the share that tells positions apart (the worst stack).
# imbalance: the largest gradient norm of a layer over the smallest. attention: the least entropy,
# over the largest possible. largest: the largest activation. rise: the last loss over the first.
#
# Of the first 150 configurations of the calibration 46 learned. Of those with kept below 0.05, 0 of
# 12 did, and below 0.25, 0 of 18; with distinct below 1e-4, 2 of 60, and from there to 5e-4, 1 of
# 7; with rise from 1.5, 0 of 22; with attention below 0.05, 1 of 19. With update below 0.1, 27 of
# 45 did, and from there 19 of 105: where branches are normalised, weights may change by much.
# "moved" tells runs apart no better than "update", and has no threshold.
# Those of the range of formats are half of the largest numbers, those of gradients and attention a
# rule of thumb, and that of the loss is the training loop's too.
THRESHOLDS = {
    "kept": Threshold("below", 0.25, 0.05),
    "update": Threshold("above", 0.1, None),
    "distinct": Threshold("below", 5e-4, 1e-4),
    "imbalance": Threshold("above", 100.0, None),
    "attention": Threshold("below", 0.05, None),
    "largest": Threshold("above", HALF_FP16, HALF_BF16),
    "rise": Threshold("above", 1.5, 1.5),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: Short, the same for every model.
        level: What it means for training.
        value: The number behind it; None where it was not measured.
        text: The finding in plain words.
    """

    name: str
    level: Level
    value: float | None
    text: str


@dataclass(frozen=True)
class Verdict:
    """All findings, and the worst of their levels."""

    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """The worst level."""
        return LEVELS[max(LEVELS.index(finding.level) for finding in self.findings)]

    @property
    def reasons(self) -> list[str]:
        """What is behind the level: the findings that have it."""
        return [finding.text for finding in self.findings if finding.level == self.level]

    @property
    def failures(self) -> list[str]:
        """What foretells failure."""
        return [finding.text for finding in self.findings if finding.level == LEVELS[-1]]


def judge(run: ShortRun) -> Verdict:
    """Judge a short run of at least one step."""
    looks = (_kept, _moved, _update, _distinct, _imbalance, _attention, _range, _loss)
    return Verdict(tuple(look(run) for look in looks))


def stacks(layers: Sequence[LayerReading]) -> list[list[LayerReading]]:
    """Group readings by the stack their layers are in."""
    groups: dict[str, list[LayerReading]] = {}
    for layer in layers:
        groups.setdefault(layer.name.rpartition(".layers.")[0], []).append(layer)
    return list(groups.values())


def kept_share(layers: Sequence[LayerReading]) -> float:
    """Return what is left at the top of a stack of what tells positions apart at its bottom.

    Near 0 the stack has collapsed in rank: its outputs are the same at every position.
    It is a ratio of mean squares, that of the worst stack; nan where something is not finite.
    """
    shares = []
    for stack in stacks(layers):
        bottom, top = stack[0].distinct_rms, stack[-1].distinct_rms
        shares.append((top / bottom) ** 2 if top is not None and bottom else math.nan)
    return math.nan if any(map(math.isnan, shares)) else min(shares)


def distinct_share(layers: Sequence[LayerReading]) -> float:
    """Return the share of the top's square that tells positions apart, in the worst stack.

    0 where something is not finite, nan where nothing was measured.
    """
    shares = []
    for stack in stacks(layers):
        distinct, whole = stack[-1].distinct_rms, stack[-1].activation_rms
        if distinct is None or whole is None:
            return math.nan
        finite = math.isfinite(distinct) and math.isfinite(whole) and whole > 0
        shares.append((distinct / whole) ** 2 if finite else 0.0)
    return min(shares)


def _kept(run: ShortRun) -> Finding:
    worst = min(stacks(run.first.layers), key=kept_share)
    value, similarity = kept_share(run.first.layers), worst[-1].token_similarity
    level = THRESHOLDS["kept"].level(value)
    if not math.isfinite(value) or similarity is None:
        text = "what tells positions apart could not be measured"
    elif level == "sound":
        text = (
            f"no rank collapse: the layers keep what tells positions apart, x{value:.3g} of the "
            f"first layer's at the top of {len(worst)} layers (token similarity "
            f"{percent(similarity)})"
        )
    else:
        factor = value ** (1 / max(len(worst) - 1, 1))
        text = (
            f"rank collapse at initialisation: of what tells positions apart in the first layer's "
            f"output, {percent(value)} is left at the top of {len(worst)} layers (x{factor:.2f} a "
            f"layer), where token similarity is {percent(similarity)}. A loss on each position has "
            f"next to nothing to learn from"
        )
    return Finding("kept", level, value, text)


def _moved(run: ShortRun) -> Finding:
    """Say how far a step moves the output; the calibration founds no threshold for it."""
    small, peak = rate_of_move(run.first_steps, SMALL_MOVE), run.at_rate(run.peak)
    near = "" if small is None else f"; a rate of {small:.2g} moves it by {percent(SMALL_MOVE)}"
    if peak is None:
        return Finding(
            "moved", "sound", None, f"the first step was not tried at the peak rate{near}"
        )
    text = (
        f"a first step at the peak rate of {run.peak:.2g} would move the output by "
        f"{percent(peak.moved)}{near}"
    )
    return Finding("moved", "sound", peak.moved, text)


def _update(run: ShortRun) -> Finding:
    peak = run.at_rate(run.peak)
    if peak is None:
        return Finding("update", "sound", None, "no update was measured at the peak rate")
    level = THRESHOLDS["update"].level(peak.update)
    advice = "" if level == "sound" else ": lower the peak rate"
    text = f"it would change weights by {percent(peak.update)}{advice}"
    return Finding("update", level, peak.update, text)


def _distinct(run: ShortRun) -> Finding:
    if not run.peak_steps:
        return Finding("distinct", "sound", None, "no steps were taken at the peak rate")
    value = distinct_share(run.peak_steps[-1].layers)
    level = THRESHOLDS["distinct"].level(value)
    collapse = ": rank collapse by training; lower the peak rate, or try another placement"
    text = (
        f"after {len(run.peak_steps)} steps at the peak rate, {percent(value)} of the output's "
        f"square tells positions apart{'' if level == 'sound' else collapse}"
    )
    return Finding("distinct", level, value, text)


def _imbalance(run: ShortRun) -> Finding:
    """Hold each stack's largest gradient norm of a layer against its smallest."""
    found = []
    for stack in stacks(run.first.layers):
        norms = [layer.gradient_norm for layer in stack if layer.gradient_norm is not None]
        if norms:
            ratio = max(norms) / min(norms) if min(norms) > 0 else math.inf
            found.append((ratio, norms[0], norms[-1]))
    if not found:
        return Finding("imbalance", "sound", None, "no gradient was measured")
    worst, bottom, top = max(found)
    text = (
        f"gradient norms of layers are within a factor of {worst:.3g} "
        f"({bottom:.2g} in the first layer, {top:.2g} in the last)"
    )
    return Finding("imbalance", THRESHOLDS["imbalance"].level(worst), worst, text)


def _attention(run: ShortRun) -> Finding:
    """Look at the layer and step of the least attention entropy, as a share."""
    shares = [
        (layer.entropy_share, layer.attention_logit_max or 0.0, layer.name, step.step)
        for step in run.steps
        for layer in step.layers
        if layer.entropy_share is not None and math.isfinite(layer.entropy_share)
    ]
    if not shares:
        return Finding("attention", "sound", None, "no attention was measured")
    share, logit, name, step = min(shares)
    text = (
        f"the sharpest attention, of {name} at step {step}, has {percent(share)} of the largest "
        f"possible entropy (largest logit {logit:.3g})"
    )
    return Finding("attention", THRESHOLDS["attention"].level(share), share, text)


def _range(run: ShortRun) -> Finding:
    """Hold the largest activation of all steps against the formats; inf where one is not finite."""
    troubles, activations = run.troubles(), [
        layer.activation_max for step in run.steps for layer in step.layers
        if layer.activation_max is not None
    ]  # fmt: skip
    trouble = troubles["bf16"] or troubles["fp16"]
    broken = troubles["bf16"] is not None and "not finite" in troubles["bf16"][1].reason
    largest = math.inf if broken else max(activations, default=None)
    if trouble:
        bearable = "" if troubles["bf16"] else "; bf16 and fp32 hold it"
        text = f"at step {trouble[0]}, {trouble[1].layer}: {trouble[1].reason}{bearable}"
    else:
        size = "not measured" if largest is None else f"{largest:.3g}"
        text = f"the largest activation is {size}: fp16, bf16 and fp32 hold it"
    return Finding("range", THRESHOLDS["largest"].level(largest), largest, text)


def _loss(run: ShortRun) -> Finding:
    first, last = run.first, run.steps[-1]
    steps = "1 step" if len(run.steps) == 1 else f"{len(run.steps)} steps"
    text = f"the loss goes from {first.loss:.4g} to {last.loss:.4g} in {steps}"
    return Finding("loss", THRESHOLDS["rise"].level(last.loss / first.loss), last.loss, text)


def move_at(tries: Sequence[FirstStep], rate: float) -> float | None:
    """Return how far a first step at some rate moves the output, between the tried rates."""
    points = [(t.learning_rate, t.moved) for t in tries if t.learning_rate > 0]
    return _between(points, rate)


def rate_of_move(tries: Sequence[FirstStep], moved: float) -> float | None:
    """Return the rate at which a first step moves the output so far; None outside the tries."""
    points = [(t.moved, t.learning_rate) for t in tries if t.learning_rate > 0]
    return _between(points, moved)


def _between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Interpolate in logarithms in the first interval that x lies in."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1 and min(x0, y0, y1) > 0 and math.isfinite(x1 + y0 + y1):
            part = math.log(x / x0) / math.log(x1 / x0) if x1 > x0 else 0.0
            return y0 * (y1 / y0) ** part
    return None


def percent(share: float) -> str:
    """Write a share with two digits that matter: 99.88 %, 0.13 %, 31 %."""
    points = 100 * share
    if not 99 < points < 100:
        return f"{points:.2g} %" if points < 100 else f"{points:.0f} %"
    digits = 1 - math.floor(math.log10(100 - points))
    return f"{points:.{min(digits, 4)}f} %"
