"""Import of timm without torchvision, which its models do not use for computing."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PARTS = ("", ".transforms", ".transforms.functional", ".datasets", ".ops", ".ops.misc", ".models",
         ".models.feature_extraction")  # fmt: skip


class Names(type):
    """Metaclass of stubs: every attribute is its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class StandIn(ModuleType):
    """Stub of a package that contains every name."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Names(name, (), {})


def with_timm(name: str) -> Any:
    """Import a module that needs timm, with a stub where torchvision is not installed.

    Raises:
        ImportError: If the module or timm is not installed.
    """
    if find_spec("torchvision") is not None:
        return import_module(name)
    parts = {f"torchvision{part}": StandIn(f"torchvision{part}") for part in PARTS}
    for path, module in parts.items():
        package, _, last = path.rpartition(".")
        if package:
            setattr(parts[package], last, module)
    sys.modules |= parts
    try:
        return import_module(name)
    finally:
        for path in parts:
            del sys.modules[path]
