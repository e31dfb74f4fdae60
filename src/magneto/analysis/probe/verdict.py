"""What a short run says about the training that would follow, in plain words with the number.

Nothing here knows a placement: every finding is a measured number beside a threshold. Where the
thresholds come from is in the documentation of the probe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from magneto.analysis.probe.probe import LayerReading
from magneto.analysis.probe.short_run import FirstStep, ShortRun

Level = Literal["sound", "at risk", "likely to fail"]
LEVELS: tuple[Level, ...] = ("sound", "at risk", "likely to fail")

# Of what tells positions apart in the first layer's output, the share left in the last one's.
# Post-LN of 4, 8, 12, 16 and 24 layers has 0.44, 0.14, 0.034, 0.011 and 0.0017: 4 learns, 8 slowly.
KEPT_AT_RISK, KEPT_TOO_LITTLE = 0.25, 0.05
# Of the output's norm, what the first step with a rate above 0 changes.
MOVED_AT_RISK = 0.75
# The largest gradient norm of a layer over the smallest.
IMBALANCE_AT_RISK = 100.0
# Attention entropy over the largest possible, in the mean over a layer.
ENTROPY_AT_RISK = 0.05
# The loss over the first loss; the loop counts the same towards divergence.
LOSS_ROSE = 1.5
# The change of the output whose learning rate is named, so that models can be compared.
SMALL_MOVE = 0.1


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


def judge(run: ShortRun) -> Verdict:
    """Judge a short run.

    Args:
        run: With at least one step.
    """
    found = (
        _kept(run), _moved(run), _imbalance(run), _attention(run), _range(run), _loss(run),
    )  # fmt: skip
    return Verdict(found)


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
    return min(shares)


def _kept(run: ShortRun) -> Finding:
    value = kept_share(run.first.layers)
    worst = min(stacks(run.first.layers), key=kept_share)
    similarity = worst[-1].token_similarity
    if not math.isfinite(value) or similarity is None:
        text = "what tells positions apart could not be measured"
        return Finding("kept", "likely to fail", None, text)
    factor = value ** (1 / max(len(worst) - 1, 1))
    level: Level = "sound"
    if value < KEPT_AT_RISK:
        level = "likely to fail" if value < KEPT_TOO_LITTLE else "at risk"
        text = (
            f"rank collapse at initialisation: of what tells positions apart in the first layer's "
            f"output, {percent(value)} is left at the top of {len(worst)} layers (x{factor:.2f} a "
            f"layer), where token similarity is {percent(similarity)}. A loss on each position has "
            f"next to nothing to learn from"
        )
    else:
        text = (
            f"no rank collapse: the layers keep what tells positions apart, x{value:.3g} of the "
            f"first layer's at the top of {len(worst)} layers (token similarity "
            f"{percent(similarity)})"
        )
    return Finding("kept", level, value, text)


def _moved(run: ShortRun) -> Finding:
    """Judge the first step that training really takes: the first rate above 0."""
    rate = next((step.learning_rate for step in run.steps if step.learning_rate > 0), None)
    small = rate_of_move(run.first_steps, SMALL_MOVE)
    near = "" if small is None else f"; a rate of {small:.2g} moves it by {percent(SMALL_MOVE)}"
    moved = None if rate is None else move_at(run.first_steps, rate)
    if rate is None or moved is None:
        return Finding("moved", "sound", small, f"the first step was not tried{near}")
    level: Level = "at risk" if not moved < MOVED_AT_RISK else "sound"
    text = f"the first step, at a rate of {rate:.2g}, moves the output by {percent(moved)}{near}"
    if level != "sound":
        text += ": start lower, or warm up for longer"
    return Finding("moved", level, moved, text)


def _imbalance(run: ShortRun) -> Finding:
    ratios, ends = [], []
    for stack in stacks(run.first.layers):
        norms = [layer.gradient_norm for layer in stack if layer.gradient_norm is not None]
        if norms:
            ratios.append(max(norms) / min(norms) if min(norms) > 0 else math.inf)
            ends.append((ratios[-1], norms[0], norms[-1]))
    if not ends:
        return Finding("imbalance", "sound", None, "no gradient was measured")
    worst, bottom, top = max(ends)
    level: Level = "at risk" if not worst < IMBALANCE_AT_RISK else "sound"
    text = (
        f"gradient norms of layers are within a factor of {worst:.3g} "
        f"({bottom:.2g} in the first layer, {top:.2g} in the last)"
    )
    return Finding("imbalance", level, worst, text)


def _attention(run: ShortRun) -> Finding:
    seen = [
        (layer.entropy_share, layer.attention_logit_max or 0.0, layer.name, step.step)
        for step in run.steps
        for layer in step.layers
        if layer.entropy_share is not None and math.isfinite(layer.entropy_share)
    ]
    if not seen:
        return Finding("attention", "sound", None, "no attention was measured")
    share, logit, name, step = min(seen)
    level: Level = "at risk" if share < ENTROPY_AT_RISK else "sound"
    text = (
        f"the sharpest attention, of {name} at step {step}, has {percent(share)} of the largest "
        f"possible entropy (largest logit {logit:.3g})"
    )
    return Finding("attention", level, share, text)


def _range(run: ShortRun) -> Finding:
    largest = max(
        (layer.activation_max for step in run.steps for layer in step.layers
         if layer.activation_max is not None), default=math.nan,
    )  # fmt: skip
    troubles = run.troubles()
    if troubles["bf16"]:
        step, trouble = troubles["bf16"]
        text = f"at step {step}, {trouble.layer}: {trouble.reason}"
        return Finding("range", "likely to fail", largest, text)
    if troubles["fp16"]:
        step, trouble = troubles["fp16"]
        text = f"at step {step}, {trouble.layer}: {trouble.reason}; bf16 and fp32 hold it"
        return Finding("range", "at risk", largest, text)
    text = f"the largest activation is {largest:.3g}: fp16, bf16 and fp32 hold it"
    return Finding("range", "sound", largest, text)


def _loss(run: ShortRun) -> Finding:
    first, last = run.steps[0], run.steps[-1]
    level: Level = "sound" if last.loss < LOSS_ROSE * first.loss else "likely to fail"
    steps = "1 step" if len(run.steps) == 1 else f"{len(run.steps)} steps"
    text = f"the loss goes from {first.loss:.4g} to {last.loss:.4g} in {steps}"
    return Finding("loss", level, last.loss, text)


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
