"""Measurement of the model update by one optimizer step, and the theory's bound on the update.

The theory (section 3.2 of the paper) bounds the expected change of a label's logit F at
initialisation, (F(x, theta - eta dL/dtheta) - F(x, theta)) / (eta d). Here, L is the loss,
eta is the learning rate and d is the width. With dL/dF = -1, the step is along the gradient of F.
The module measures two changes, which grow differently with depth:

- "label": the change of the label's logit, as in the theory.
- "output": the relative change of the whole output. The step reduces the cross-entropy of a batch,
  as in training.

The bound depends on the scales v and w of the weight matrices. The function `effective_scales`
measures v and w in a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from statistics import fmean, linear_regression
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from magneto.functional.statistics import half_width
from magneto.nn.block import Residual
from magneto.nn.config import TransformerConfig
from magneto.nn.init import sublayer_projections
from magneto.nn.transformer import Decoder, Encoder, EncoderDecoder, LayerStack, ProbedStack
from magneto.progress import SILENT, Progress
from magneto.theory.bounds import (
    Form,
    Scales,
    bound,
    derived_scales,
    effective_scale,
    encoder_decoder_bound,
    find_family,
)
from magneto.theory.placement import Depth, Placement, Stack

MeasuredOptimizer = Literal["sgd", "adam"]
Reading = Literal["label", "output"]
MEASURES: tuple[tuple[Reading, MeasuredOptimizer], ...] = (
    ("label", "sgd"), ("label", "adam"), ("output", "sgd"), ("output", "adam"),
)  # fmt: skip

# Small enough for a linear change, large enough for float64 (see the tests).
STEP = 1e-7
# Classes of the cross-entropy, and positions of an input.
LABELS, LENGTH = 64, 16
# Roles of the bound's first and second matrix of a sublayer.
FIRST, SECOND = ("v", "fc1"), ("out", "fc2")


@dataclass(frozen=True)
class Update:
    """Measured effect of one optimizer step with learning rate `STEP`, divided by `STEP`.

    Attributes:
        placement: Name of the placement, or of the row in a comparison.
        layers: Depth of the stack.
        seed: Seed of weights, inputs and labels.
        reading: "label" or "output". For "label", a step increases a label's logit, and the change
            of the logit is divided by the width. For "output", a step lowers the mean
            cross-entropy, and the norm of the features' change is divided by the features' norm.
        optimizer: "sgd" or "adam".
        value: The change. For "label", the change is a mean over samples.
    """

    placement: str
    layers: int
    seed: int
    reading: Reading
    optimizer: MeasuredOptimizer
    value: float


@dataclass(frozen=True)
class Growth:
    """Growth of measured updates with depth, fitted as value ~ layers ** exponent.

    Attributes:
        placement: Name of the placement, or of the row in a comparison.
        reading: "label" or "output", see `Update`.
        optimizer: "sgd" or "adam".
        exponent: Slope of log(value) against log(layers), as a mean over seeds.
        interval: Half-width of the exponent's 95 % interval over seeds (nan for one seed).
        ratio: Value at the largest depth divided by the value at the smallest, as a geometric mean
            over seeds.
        ratio_range: Ends of the ratio's 95 % interval.
        depths: The smallest and the largest depth.
    """

    placement: str
    reading: Reading
    optimizer: MeasuredOptimizer
    exponent: float
    interval: float
    ratio: float
    ratio_range: tuple[float, float]
    depths: tuple[int, int]


def measure_update(
    config: TransformerConfig,
    *,
    stack: Stack = "decoder",
    samples: int = 4,
    seed: int = 0,
) -> list[Update]:
    """Measure how one small step on the weight matrices of a new stack changes its output.

    The stack has the depth and width d of `config`. As in the theory, inputs are standard normal,
    and the weights that give a label's logit are N(0, 1/d). The last of `LENGTH` positions gives
    the logit. For the reading "label", the stack takes a separate step on each sample, always from
    the initial weights. For "output", the stack takes one step on the whole batch. Adam's first
    step changes every weight by the learning rate.

    Returns:
        One `Update` for each entry of `MEASURES`, computed in float64.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (Encoder if stack == "encoder" else Decoder)(config).double().eval()
        x = torch.randn(samples, LENGTH, config.width, dtype=torch.float64)
        rows = torch.randn(LABELS, config.width, dtype=torch.float64) / math.sqrt(config.width)
        answers = torch.randint(LABELS, (samples, LENGTH))
    values = _label_changes(model, x, rows) | _output_changes(model, x, rows, answers)
    name = config.row.name
    return [Update(name, config.layers, seed, *measure, values[measure]) for measure in MEASURES]


Values = dict[tuple[Reading, MeasuredOptimizer], float]


def _label_changes(model: LayerStack, x: Tensor, rows: Tensor) -> Values:
    """Return the mean change of a label's logit by a step on each sample, scaled as in `Update`."""
    changes: dict[MeasuredOptimizer, list[float]] = {"sgd": [], "adam": []}
    for sample, label in zip(x.split(1), rows[: len(x)], strict=True):
        before = model(sample)[0, -1] @ label
        steps = _steps(model, before)
        with torch.no_grad():
            for optimizer, step in steps.items():
                after = _moved(model, step, sample)[0, -1] @ label
                changes[optimizer].append((after - before).item())
    scale = STEP * model.config.width
    return {("label", name): fmean(parts) / scale for name, parts in changes.items()}


def _output_changes(model: LayerStack, x: Tensor, rows: Tensor, answers: Tensor) -> Values:
    before = model(x)
    logits = (before @ rows.T).flatten(0, 1)
    steps = _steps(model, -nn.functional.cross_entropy(logits, answers.flatten()))
    with torch.no_grad():
        return {
            ("output", name): ((_moved(model, step, x) - before).norm() / before.norm()).item()
            / STEP
            for name, step in steps.items()
        }


def _steps(model: LayerStack, up: Tensor) -> dict[MeasuredOptimizer, dict[str, Tensor]]:
    """Return the steps of SGD and Adam that increase `up`, with learning rate 1."""
    weights = {f"layers.{n}": p for n, p in model.layers.named_parameters() if p.ndim >= 2}
    up_hill = dict(zip(weights, torch.autograd.grad(up, [*weights.values()]), strict=True))
    return {"sgd": up_hill, "adam": {name: part.sign() for name, part in up_hill.items()}}


def _moved(model: LayerStack, step: dict[str, Tensor], x: Tensor) -> Tensor:
    weights = {n: model.get_parameter(n).add(part, alpha=STEP) for n, part in step.items()}
    return functional_call(model, weights, (x,))


def measured_shape(config: TransformerConfig, width: int = 64) -> TransformerConfig:
    """Return the configuration of a plain stack like the model's, for fast measurements.

    The plain stack has no dropout, positions, layer scale or input norm. A model that is wider than
    `width` is reduced to `width`, with 16 features per head. The ratio of feed-forward width to
    width stays the same. The growth of updates with depth hardly depends on the width (see the
    documentation of the probe).
    """
    own = {field.name: getattr(config, field.name) for field in fields(TransformerConfig)}
    without = {
        "encoder_layers": None, "decoder_layers": None, "positions": "none", "input_norm": "none",
        "grid_positions": "none", "layer_scale": None, "dropout": 0.0, "attention_dropout": 0.0,
        "activation_dropout": 0.0, "drop_path": 0.0,
        "checkpoint_activations": False, "parametrization": "standard", "base_width": None,
    }  # fmt: skip
    plain = TransformerConfig(**(own | without))
    if config.width <= width:
        return plain
    ffn_width = max(round(config.ffn_width * width / config.width), 1)
    heads = max(width // 16, 1)
    return replace(
        plain, width=width, heads=heads, head_dim=None, key_value_heads=None, ffn_width=ffn_width
    )


def measure_growth(
    config: TransformerConfig,
    *,
    depths: Sequence[int],
    seeds: Sequence[int] = (0, 1, 2),
    stack: Stack = "decoder",
    samples: int = 4,
    progress: Progress = SILENT,
) -> list[Update]:
    """Return the measurements in `MEASURES` for every depth and seed, ordered by depth.

    The values in `depths` replace the depth of `config`. Each measurement uses `samples` random
    inputs.
    """
    what, done = f"measuring updates of {config.row.title}, layers", 0
    updates = []
    with one_thread():
        for depth in depths:
            for seed in seeds:
                cell = replace(config, layers=depth)
                updates += measure_update(cell, stack=stack, samples=samples, seed=seed)
                done += depth
                progress.update(what, done, len(seeds) * sum(depths))
    return updates


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def growth(updates: Sequence[Update]) -> list[Growth]:
    """Fit how updates grow with depth, for each placement, measured quantity and optimizer.

    Raises:
        ValueError: If there is only one depth, or if an update is zero, negative or not finite.
    """
    # Logarithms of each measure by seed and depth.
    measures: dict[tuple[str, Reading, MeasuredOptimizer], dict[int, dict[int, float]]] = {}
    for update in updates:
        if not (math.isfinite(update.value) and update.value > 0):
            raise ValueError(
                f"{update.placement} at {update.layers} layers: a step changes the output by "
                f"{update.value}, so no growth can be fitted"
            )
        seeds = measures.setdefault((update.placement, update.reading, update.optimizer), {})
        seeds.setdefault(update.seed, {})[update.layers] = math.log(update.value)
    found = []
    for measure, seeds in measures.items():
        depths = sorted({layers for logs in seeds.values() for layers in logs})
        if len(depths) < 2:
            raise ValueError(f"{measure[0]} was measured only at {depths[0]} layers; growth can be "
                             "fitted only to two or more depths")  # fmt: skip
        x, low, high = [math.log(layers) for layers in depths], depths[0], depths[-1]
        slopes = [linear_regression(x, [logs[d] for d in depths]).slope for logs in seeds.values()]
        rises = [logs[high] - logs[low] for logs in seeds.values()]
        rise, half = fmean(rises), half_width(rises)
        limits = math.exp(rise - half), math.exp(rise + half)
        interval = half_width(slopes)
        found.append(Growth(*measure, fmean(slopes), interval, math.exp(rise), limits, (low, high)))
    return found


def effective_scales(stack: ProbedStack) -> Scales:
    """Measure the scales v and w of the weight matrices in each sublayer of a stack.

    The square of a scale is fan_in times the variance of a matrix's entries. The scale w belongs to
    the sublayer's first matrix (v_proj or fc1). The scale v belongs to the second matrix (out_proj
    or fc2). The theory has neither gates nor experts. For a gated fc1, the squared scales of its
    two halves are averaged. For a sublayer with experts, the squared scales of the experts are
    averaged.

    Raises:
        ValueError: If a weight matrix is constant or not finite, or if the skip connections have
            different weights.
    """
    sublayers = [part for layer in stack.layers for part in layer.children()]
    alphas = {part.alpha for part in stack.layers.modules() if isinstance(part, Residual)}
    if len(alphas) != 1:
        raise ValueError(f"the skip connections have different weights: {sorted(alphas)}")
    measured = [
        [role for _, projection in sublayer_projections(sublayer) for role in projection.roles()]
        for sublayer in sublayers
    ]
    return Scales(
        v=tuple(_scale(weights, SECOND) for weights in measured),
        w=tuple(_scale(weights, FIRST) for weights in measured),
        alpha=alphas.pop(),
    )


@torch.no_grad()
def _scale(weights: list[tuple[str, Tensor]], roles: tuple[str, ...]) -> float:
    squares = [
        effective_scale(weight.shape[1], weight.double().var(correction=0).item()) ** 2
        for role, weight in weights
        if role in roles
    ]
    return fmean(squares) ** 0.5


@dataclass(frozen=True)
class Bound:
    """The theory's bound on the model update by one SGD step.

    The update is divided by the learning rate and the width. `derived` and `measured` have a value
    for each `Form` of the bound. Without a bound, both are empty.

    Attributes:
        derived: Bound for square matrices with the placement's initialisation.
        measured: Bound with the scales of the model's weights.
        note: Reason why there is no bound, or a remark on the bound.
    """

    derived: dict[str, float]
    measured: dict[str, float]
    note: str = ""


def theory_of(model: nn.Module) -> Bound:
    """Return the theory's bound for a model with one stack or an encoder-decoder.

    If there is no bound, `Bound.note` is the reason.
    """
    stacks = [part for part in model.modules() if isinstance(part, ProbedStack)]
    pair = any(isinstance(part, EncoderDecoder) for part in model.modules())
    if len(stacks) != (2 if pair else 1):
        note = f"no bound is derived for a model with {len(stacks)} Transformer stacks"
        return Bound({}, {}, note)
    row = stacks[-1].config.row
    try:
        family = find_family(row)
        derived = [
            derived_scales(row, stack.config.depth("decoder" if stack.causal else "encoder"))
            for stack in stacks
        ]
        measured = [effective_scales(stack) for stack in stacks]
        return Bound(
            {form: total_bound(row, derived, form) for form in family.backward},
            {form: total_bound(row, measured, form) for form in family.backward},
            family.note,
        )
    except ValueError as reason:
        return Bound({}, {}, str(reason))


def total_bound(row: Placement, scales: Sequence[Scales], form: Form) -> float:
    if len(scales) == 1:
        return bound(row, scales[0], form=form)
    return encoder_decoder_bound(row, *scales, form=form).total


def bounds_over(row: Placement, depths: Sequence[int], stack: Stack) -> dict[str, list[float]]:
    """Return each `Form` of the bound at all depths; {} if there is no bound."""
    try:
        family = find_family(row)
        scales = [derived_scales(row, Depth(stack, layers)) for layers in depths]
        return {form: [bound(row, part, form=form) for part in scales] for form in family.backward}
    except ValueError:
        return {}
