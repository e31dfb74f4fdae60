"""Maximal update parametrisation: rates, decay and initial scales of the package `mup`."""

import math

import pytest
import torch
from torch import nn

from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel
from magneto.nn.parametrization import scale_initial_values, width_scales
from magneto.theory.placement import PLACEMENTS
from magneto.training.optimizer import build_optimizer
from tests.unit.training.toy import config as training_config

mup = pytest.importorskip("mup")
BASE, WIDTH, RATE, DECAY = 32, 128, 0.01, 0.1


def shape(width: int, placement: str) -> LanguageModelConfig:
    """Of models with heads of 16; all but the width is alike."""
    mine = {"parametrization": "mup", "base_width": BASE} if width != BASE else {}
    return LanguageModelConfig(
        width=width, heads=width // 16, ffn_width=3 * width, layers=2, vocab_size=400,
        placement=placement, tie_embeddings=False, positions="learned", max_length=300, **mine,
    )  # fmt: skip


def theirs(model: nn.Module, base: nn.Module) -> dict[int, dict]:
    """Return the package's group of each parameter."""
    mup.set_base_shapes(model, base, rescale_params=False, do_assert=False)
    optimizer = mup.MuAdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_rates_decay_and_scales_are_the_packages(placement: str) -> None:
    torch.manual_seed(1)
    model, base = LanguageModel(shape(WIDTH, placement)), LanguageModel(shape(BASE, placement))
    scales = width_scales(model)
    scale_initial_values(model, scales)
    settings = training_config(learning_rate=RATE, weight_decay=DECAY)
    groups = {id(p): group for group in build_optimizer(model, settings).param_groups
              for p in group["params"]}  # fmt: skip
    known = theirs(model, base)
    small = dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        ours, found = groups[id(parameter)], known[id(parameter)]
        # What the forward pass multiplies a weight by: ours of the embedding, theirs of the head.
        multiplied, scale, base_scale = 1.0, 1.0, 1.0
        if name == "embedding.table.weight":
            scale, base_scale = math.sqrt(WIDTH), math.sqrt(BASE)
        if name == "head.weight":
            multiplied = 1 / parameter.infshape.width_mult()
        assert ours["lr"] * scale / base_scale == pytest.approx(found["lr"] * multiplied), name
        if ours["weight_decay"]:
            assert ours["lr"] * ours["weight_decay"] == pytest.approx(RATE * DECAY), name
            assert found["lr"] * found["weight_decay"] == pytest.approx(RATE * DECAY), name
        std = small[name].std().item() if parameter.ndim > 1 else 0.0
        if not std:
            assert torch.equal(parameter.unique(), small[name].unique()), name
            continue
        drawn = drawn_by_package(parameter, std)
        assert parameter.std().item() * scale == pytest.approx(
            drawn * base_scale * multiplied, rel=0.06
        ), name


def drawn_by_package(parameter: nn.Parameter, std: float) -> float:
    fresh = nn.Parameter(torch.empty_like(parameter))
    fresh.infshape = parameter.infshape
    mup.init.normal_(fresh, std=std)
    return fresh.std().item()
