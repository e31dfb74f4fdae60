"""Magneto: one Transformer for every modality, and a lab for norm placements.

`magneto probe` predicts from a few steps whether a recipe will train. `magneto compare` trains
several norm placements, and recommends a placement and a learning rate.

`import magneto` imports no submodule. Public names are imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneto.nn.attention import EncoderDecoderCache, KeyValueCache
    from magneto.nn.config import TransformerConfig
    from magneto.nn.init import initialize
    from magneto.nn.transformer import Decoder, Encoder, EncoderDecoder
    from magneto.theory.placement import PLACEMENTS, Depth, Placement

__version__ = "0.1.0"

__all__ = [
    "PLACEMENTS",
    "Decoder",
    "Depth",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderCache",
    "KeyValueCache",
    "Placement",
    "TransformerConfig",
    "initialize",
]

_HOME = {
    "PLACEMENTS": "magneto.theory.placement",
    "Decoder": "magneto.nn.transformer",
    "Depth": "magneto.theory.placement",
    "Encoder": "magneto.nn.transformer",
    "EncoderDecoder": "magneto.nn.transformer",
    "EncoderDecoderCache": "magneto.nn.attention",
    "KeyValueCache": "magneto.nn.attention",
    "Placement": "magneto.theory.placement",
    "TransformerConfig": "magneto.nn.config",
    "initialize": "magneto.nn.init",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'magneto' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
