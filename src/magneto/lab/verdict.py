"""The probe's verdict predicts from a short run whether training fails, and why.

Every finding compares a measured number with a threshold. The thresholds are the same for all
placements. Most thresholds come from a calibration: configurations of five tasks were probed and
trained (benchmarks/results/probe-calibration.*). The thresholds were chosen on one part of these
configurations. The documentation reports the accuracy of the verdicts on the other part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from magneto.lab.probe import LIMITS, LayerReading
from magneto.lab.short_run import FirstStep, ShortRun

Level = Literal["sound", "not decided", "likely to fail"]
# Half of the largest finite number.
HALF_FP16, HALF_BF16 = LIMITS["fp16"] / 2, LIMITS["bf16"] / 2
LEVELS: tuple[Level, ...] = ("sound", "not decided", "likely to fail")
# Change of the output by a first step; the rate that makes it is reported, to compare models.
SMALL_MOVE = 0.1


@dataclass(frozen=True)
class Threshold:
    """Two limits that classify a measured number.

    `worse` says whether numbers "above" or "below" the limits are bad. Beyond the limit
    `undecided`, the outcome of training is open. Beyond `fails`, training probably fails. If
    `fails` is None, the worst level is "not decided".
    """

    worse: Literal["above", "below"]
    undecided: float
    fails: float | None

    def level(self, value: float) -> Level:
        """Return "sound", "not decided" or "likely to fail"; for nan, the worst possible level."""
        if self._is_better(value, self.undecided):
            return "sound"
        if self.fails is None or self._is_better(value, self.fails):
            return "not decided"
        return "likely to fail"

    def _is_better(self, value: float, limit: float) -> bool:
        return value > limit if self.worse == "below" else value < limit


# kept: variation between positions (mean square) of the last layer's output over that of the first
# layer's, at initialisation, in the worst stack. update: change of the layers' weights by the first
# step at the peak rate, over their norm. distinct: share of variation between positions in the mean
# square of the last layer's output, after the steps at the peak rate, in the worst stack.
# imbalance: largest gradient norm of a layer over the smallest. attention: smallest entropy over
# its maximum. largest: largest activation. rise: last loss over first loss.
#
# Of the first 150 configurations of the calibration, 46 learned. With kept below 0.05, 0 of 12
# learned, and below 0.25, 0 of 18. With distinct below 1e-4, 2 of 60 learned, and from there to
# 5e-4, 1 of 7. With rise 1.5 or more, 0 of 22 learned; with attention below 0.05, 1 of 19. With
# update below 0.1, 27 of 45 learned, and above, 19 of 105: normalised branches allow large changes
# of weights. "moved" separates runs no better than "update", so it has no threshold.
# The thresholds of number formats are half of their range. Those of gradients and attention are
# rules of thumb. That of the loss is also the training loop's.
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
    """Result of a measurement: its level, its value (None if not measured), and a text."""

    name: str
    level: Level
    value: float | None
    text: str


@dataclass(frozen=True)
class Verdict:
    """Findings of the probe, and the verdict that follows from the worst finding."""

    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        """Level of the worst finding."""
        return LEVELS[max(LEVELS.index(finding.level) for finding in self.findings)]

    @property
    def reasons(self) -> list[str]:
        """Texts of the findings that determine the verdict's level."""
        return [finding.text for finding in self.findings if finding.level == self.level]

    @property
    def failures(self) -> list[str]:
        return [finding.text for finding in self.findings if finding.level == LEVELS[-1]]


def judge(run: ShortRun) -> Verdict:
    """Return the verdict on a short run.

    `run.steps`, `run.first_steps` and `run.peak_steps` must not be empty.
    """
    checks = (_kept, _moved, _update, _distinct, _imbalance, _attention, _range, _loss)
    return Verdict(tuple(check(run) for check in checks))


def stacks(layers: Sequence[LayerReading]) -> list[list[LayerReading]]:
    groups: dict[str, list[LayerReading]] = {}
    for layer in layers:
        groups.setdefault(layer.name.rpartition(".layers.")[0], []).append(layer)
    return list(groups.values())


def kept_share(layers: Sequence[LayerReading]) -> float:
    """Return the share of the variation between positions that is left after the last layer.

    The share is the mean square of the variation after the last layer, divided by its mean square
    after the first layer. With several stacks, the smallest share is returned. A share near 0 is a
    rank collapse: the stack's outputs are equal at all positions. The result is nan if a share is
    nan or was not measured.
    """
    shares = []
    for stack in stacks(layers):
        bottom, top = stack[0].distinct_rms, stack[-1].distinct_rms
        shares.append((top / bottom) ** 2 if top is not None and bottom else math.nan)
    return math.nan if any(map(math.isnan, shares)) else min(shares)


def distinct_share(layers: Sequence[LayerReading]) -> float:
    """Return the mean square of the variation between positions, as a share of the total.

    The total is the mean square of the last layer's output. With several stacks, the smallest share
    is returned. A stack with a measurement that is not finite has the share 0. If a measurement is
    missing, the result is nan.
    """
    shares = []
    for stack in stacks(layers):
        distinct, total = stack[-1].distinct_rms, stack[-1].activation_rms
        if distinct is None or total is None:
            return math.nan
        finite = math.isfinite(distinct) and math.isfinite(total) and total > 0
        shares.append((distinct / total) ** 2 if finite else 0.0)
    return min(shares)


def _kept(run: ShortRun) -> Finding:
    worst = min(stacks(run.first.layers), key=kept_share)
    value, similarity = kept_share(run.first.layers), worst[-1].token_similarity
    level = THRESHOLDS["kept"].level(value)
    if not math.isfinite(value) or similarity is None:
        text = "the variation between positions could not be measured"
    elif level == "sound":
        text = (
            f"no rank collapse: at layer {len(worst)}, the variation between positions is "
            f"{value:.3g} times its value at layer 1 (token similarity {percent(similarity)})"
        )
    else:
        factor = value ** (1 / max(len(worst) - 1, 1))
        text = (
            f"{'rank' if level == LEVELS[-1] else 'partial rank'} collapse at initialisation: at "
            f"layer {len(worst)}, the variation between positions is {percent(value)} of its value "
            f"at layer 1 (x{factor:.2f} per layer; token similarity {percent(similarity)})"
        )
    return Finding("kept", level, value, text)


def _moved(run: ShortRun) -> Finding:
    """Report how much a first step at the peak rate changes the output.

    The level is always "sound", because the calibration found no useful threshold.
    """
    small, peak = rate_of_move(run.first_steps, SMALL_MOVE), run.at_rate(run.peak)
    near = "" if small is None else f"; a rate of {small:.2g} changes it by {percent(SMALL_MOVE)}"
    text = (
        f"a first step at the peak rate of {run.peak:.2g} would change the output by "
        f"{percent(peak.moved)}{near}"
    )
    return Finding("moved", "sound", peak.moved, text)


def _update(run: ShortRun) -> Finding:
    peak = run.at_rate(run.peak)
    level = THRESHOLDS["update"].level(peak.update)
    advice = "" if level == "sound" else "; lower the peak rate"
    change = percent(peak.update)
    text = f"a first step at the peak rate would change the weights by {change}{advice}"
    return Finding("update", level, peak.update, text)


def _distinct(run: ShortRun) -> Finding:
    value = distinct_share(run.peak_steps[-1].layers)
    level = THRESHOLDS["distinct"].level(value)
    advice = " (a rank collapse in training). Lower the peak rate, or try another placement"
    text = (
        f"after {len(run.peak_steps)} steps at the peak rate, the variation between positions "
        f"makes up {percent(value)} of the output's mean square{'' if level == 'sound' else advice}"
    )
    return Finding("distinct", level, value, text)


def _imbalance(run: ShortRun) -> Finding:
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
        f"gradient norms of the layers differ by a factor of up to {worst:.3g} "
        f"({bottom:.2g} in the first layer, {top:.2g} in the last)"
    )
    return Finding("imbalance", THRESHOLDS["imbalance"].level(worst), worst, text)


def _attention(run: ShortRun) -> Finding:
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
        f"the sharpest attention ({name}, step {step}) has {percent(share)} of the entropy of "
        f"uniform attention (largest logit {logit:.3g})"
    )
    return Finding("attention", THRESHOLDS["attention"].level(share), share, text)


def _range(run: ShortRun) -> Finding:
    """Compare the largest activation with the range of number formats.

    If an activation, gradient or weight is not finite, the largest activation counts as infinity.
    """
    troubles, activations = run.troubles(), [
        layer.activation_max for step in run.steps for layer in step.layers
        if layer.activation_max is not None
    ]  # fmt: skip
    trouble = troubles["bf16"] or troubles["fp16"]
    broken = troubles["bf16"] is not None and "not finite" in troubles["bf16"][1].reason
    largest = math.inf if broken else max(activations, default=0.0)
    if trouble:
        remark = "" if troubles["bf16"] else "; it is within the range of bf16 and fp32"
        text = f"at step {trouble[0]}, {trouble[1].layer}: {trouble[1].reason}{remark}"
    else:
        text = f"the largest activation is {largest:.3g}, within the range of fp16, bf16 and fp32"
    return Finding("range", THRESHOLDS["largest"].level(largest), largest, text)


def _loss(run: ShortRun) -> Finding:
    first, last = run.first, run.steps[-1]
    steps = "1 step" if len(run.steps) == 1 else f"{len(run.steps)} steps"
    text = f"the loss changes from {first.loss:.4g} to {last.loss:.4g} in {steps}"
    return Finding("loss", THRESHOLDS["rise"].level(last.loss / first.loss), last.loss, text)


def move_at(tries: Sequence[FirstStep], rate: float) -> float | None:
    """Return how much a first step at `rate` changes the output.

    The change is interpolated between tested rates.
    """
    points = [(t.learning_rate, t.moved) for t in tries if t.learning_rate > 0]
    return _between(points, rate)


def rate_of_move(tries: Sequence[FirstStep], moved: float) -> float | None:
    """Return the rate at which a first step changes the output by `moved`, or None.

    The rate is interpolated between tested rates. None means that `moved` does not lie between the
    changes at two neighbouring rates.
    """
    points = [(t.moved, t.learning_rate) for t in tries if t.learning_rate > 0]
    return _between(points, moved)


def _between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Interpolate log(y) linearly in log(x) between the first two points that enclose x.

    Return None if no two neighbouring points enclose x.
    """
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1 and min(x0, y0, y1) > 0 and math.isfinite(x1 + y0 + y1):
            part = math.log(x / x0) / math.log(x1 / x0) if x1 > x0 else 0.0
            return y0 * (y1 / y0) ** part
    return None


def percent(share: float) -> str:
    """Format a share with two significant digits, such as 0.13 %.

    Above 99 %, the difference from 100 % has two significant digits, as in 99.88 %.
    """
    points = 100 * share
    if not 99 < points < 100:
        return f"{points:.2g} %" if points < 100 else f"{points:.0f} %"
    digits = 1 - math.floor(math.log10(100 - points))
    return f"{points:.{min(digits, 4)}f} %"
