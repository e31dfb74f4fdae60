"""Scales v and w measured from a model's own weights, for the bounds of the theory."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import torch
from torch import Tensor, nn

from magneto.nn.block import Residual
from magneto.nn.init import HasRoles
from magneto.nn.transformer import EncoderDecoder, ProbedStack
from magneto.theory.bounds import Form, bound, encoder_decoder_bound
from magneto.theory.scales import Scales, effective_scale

# The bound's first and second matrix of a sublayer, by role.
FIRST, SECOND = ("v", "fc1"), ("out", "fc2")


def effective_scales(stack: ProbedStack) -> Scales:
    """Measure v and w of every sublayer: v^2 or w^2 is fan_in times the variance of the entries.

    v is measured on out_proj and fc2, w on v_proj and fc1, in the order they are computed. A gated
    fc1 counts as the mean of its two halves; the theory has no gate. So do a sublayer's experts: a
    token goes through one of them.

    Args:
        stack: An `Encoder`, a `Decoder` or a `MultiwayEncoder`.

    Raises:
        ValueError: If a weight is constant, so that its scale is 0, or not finite.
    """
    sublayers = [part for layer in stack.layers for part in layer.children()]
    alphas = {part.alpha for part in stack.layers.modules() if isinstance(part, Residual)}
    if len(alphas) != 1:
        raise ValueError(f"one weight of the skip connection is expected, not {sorted(alphas)}")
    measured = [_roles(part) for part in sublayers]
    return Scales(
        v=tuple(_scale(weights, SECOND) for weights in measured),
        w=tuple(_scale(weights, FIRST) for weights in measured),
        alpha=alphas.pop(),
    )


def _roles(sublayer: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        role for part in sublayer.modules() if isinstance(part, HasRoles) for role in part.roles()
    ]


@torch.no_grad()
def _scale(weights: list[tuple[str, Tensor]], roles: tuple[str, ...]) -> float:
    squares = [
        effective_scale(weight.shape[1], weight.double().var(correction=0).item()) ** 2
        for role, weight in weights
        if role in roles
    ]
    return fmean(squares) ** 0.5


def measured_bound(
    model: nn.Module, *, form: Form = "paper", cross: Iterable[int] | None = None
) -> float:
    """Return the bound of the model update with a model's own scales, divided by eta d.

    Args:
        model: Holds one `Encoder`, `Decoder` or `MultiwayEncoder`, or one `EncoderDecoder`.
        form: As in `magneto.theory.bounds.bound`.
        cross: Of an encoder-decoder, as in `encoder_decoder_bound`.

    Raises:
        ValueError: If it holds something else, or no bound is derived for its placement.
    """
    pairs = [part for part in model.modules() if isinstance(part, EncoderDecoder)]
    stacks = [part for part in model.modules() if isinstance(part, ProbedStack)]
    if len(pairs) == 1 and len(stacks) == 2:
        encoder, decoder = pairs[0].encoder, pairs[0].decoder
        scales = effective_scales(encoder), effective_scales(decoder)
        made = encoder_decoder_bound(decoder.config.row, *scales, cross=cross, form=form)
        return made.total
    if len(stacks) != 1:
        raise ValueError(f"a model with one stack, or an encoder-decoder: not {len(stacks)} stacks")
    return bound(stacks[0].config.row, effective_scales(stacks[0]), form=form)
