"""Small configurations and weights for tests; and timm, where it is installed."""

import importlib.util
from typing import Any

import pytest
import torch

from benchmarks.timm_modules import with_timm
from magneto import TransformerConfig
from magneto.fields import configuration
from magneto.nn.config import Grid


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


def timm_module(name: str) -> Any:
    """Import a module of timm, without torchvision: its models compute nothing with it."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    return with_timm(name)
