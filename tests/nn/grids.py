"""A configuration over a grid, for tests; and timm, where it is installed."""

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from magneto import TransformerConfig
from magneto.nn.config import Grid


@dataclass(frozen=True, kw_only=True)
class GridConfig(TransformerConfig):
    """A stack over a grid whose size is given."""

    rows: int = 4
    columns: int = 4
    prefix: int = 1

    @property
    def grid(self) -> Grid:
        return Grid(self.rows, self.columns, self.prefix)


def small_grid(**changes: Any) -> GridConfig:
    return GridConfig(**{"width": 32, "heads": 4, "layers": 2, "ffn_width": 48, **changes})


class Names(type):
    """Of classes whose every attribute is its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Stub(ModuleType):
    """A package that has every name."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Names(name, (), {})


TORCHVISION = ("", ".transforms", ".transforms.functional", ".datasets", ".ops", ".ops.misc",
               ".models", ".models.feature_extraction")  # fmt: skip


def timm_module(name: str) -> Any:
    """Import a module of timm, without torchvision: its models compute nothing with it."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    stubs = {}
    if importlib.util.find_spec("torchvision") is None:
        stubs = {f"torchvision{part}": Stub(f"torchvision{part}") for part in TORCHVISION}
        for name_of_stub, stub in stubs.items():
            package, _, last = name_of_stub.rpartition(".")
            if package:
                setattr(stubs[package], last, stub)
    sys.modules |= stubs
    try:
        return importlib.import_module(name)
    finally:
        for stub in stubs:
            del sys.modules[stub]
