"""Small configurations and weights for tests; and timm, where it is installed."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.timm_modules import with_timm
from magneto import TransformerConfig
from magneto.fields import configuration
from magneto.nn.config import Grid
from magneto.theory.placement import SLOTS, Placement
from magneto.training.model import build_on_meta, draw_parameters, materialize

# What any row of the table has: models that are compiled need no other.
EVERY_PART = Placement(
    name="every part", title="", source="", self_attention=SLOTS, cross_attention=SLOTS,
    feed_forward=SLOTS, final="norm", head_scale="before_out", query_key_norm="head",
    value_norm="head", gated=("self_attention", "cross_attention"), alpha=lambda depth: 2.0,
)  # fmt: skip


@configuration
class GridConfig(TransformerConfig):
    """A stack over a grid whose size is given."""

    rows: int = 4
    columns: int = 4
    prefix: int = 1

    @property
    def grid(self) -> Grid:
        return Grid(self.rows, self.columns, self.prefix)


def small(**changes: Any) -> TransformerConfig:
    return TransformerConfig(**{"width": 32, "heads": 4, "layers": 2, "ffn_width": 48, **changes})


def small_grid(**changes: Any) -> GridConfig:
    return GridConfig(**{"width": 32, "heads": 4, "layers": 2, "ffn_width": 48, **changes})


def shaken(model: Any, by: float = 0.2) -> Any:
    """No weight is neutral: norms, biases and scales have values of their own."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return model.eval()


def redrawn(model: nn.Module) -> None:
    """Draw every weight at random, those of norms around 1."""
    torch.manual_seed(0)
    slots = {"before", "branch", "inside", "after"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            of_norm = "norm" in name or slots & {*name.split(".")}
            parameter.normal_(float(bool(of_norm) and name.endswith("weight")), 0.3)


def drawn_by_module(build: Callable[[], nn.Module]) -> Any:
    """Return a model that is built without memory and drawn later, module by module."""
    model, reason = build_on_meta(build)
    assert model is not None, reason
    materialize(model, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    draw_parameters(model, seed=3)
    return model


def timm_module(name: str) -> Any:
    """Import a module of timm, without torchvision: its models compute nothing with it."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    return with_timm(name)
