"""Files of weights of other libraries: timm's, torchscale's, BEiT-3's authors', fairseq's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magneto.hf.weights import beit3, timm, torchscale
from magneto.hf.weights.layout import State

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
ARGUMENTS = "torchscale.json"
WEIGHTS = "model.safetensors"
# The first that fits is taken.
FORMATS = {**beit3.FORMATS, **timm.FORMATS, **torchscale.FORMATS}
WRITTEN = tuple(FORMATS)


def timm_arguments(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that timm's config.json has, `architecture` and `global_pool` too."""
    names = ("architecture", "global_pool")
    return {name: held[name] for name in names if name in held} | dict(held.get("model_args", {}))


def is_weight_directory(path: Path) -> bool:
    """Whether a directory holds weights with the arguments of timm or torchscale beside them."""
    return (path / ARGUMENTS).is_file() or "architecture" in _read_json(path / timm.CONFIG)


def load_weight_file(path: Path, args: dict[str, Any] | None = None) -> nn.Module:
    """Return another library's weights as a model of ours, in evaluation mode.

    Args:
        path: A file, or a directory with `model.safetensors` and timm's `config.json` or
            `torchscale.json`.
        args: By the library's names, above those found beside the weights.

    Raises:
        ValueError: If the weights are none of these libraries', or the file has none.
        FileNotFoundError: If it is not there.
    """
    found: dict[str, Any] = {}
    if path.is_dir():
        found = timm_arguments(_read_json(path / timm.CONFIG)) | _read_json(path / ARGUMENTS)
        path = path / WEIGHTS
    state, held = read_weights(path)
    given = {**held, **found, **(args or {})}
    form = next((form for form in FORMATS.values() if form.fits(state)), None)
    if form is None:
        raise ValueError(f"{path} holds neither timm's nor torchscale's nor BEiT-3's weights: "
                         f"its first tensor is {next(iter(state), None)!r}")  # fmt: skip
    return form.load(state, given)


def _read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    return held if isinstance(held, dict) else {}


def read_weights(path: Path) -> tuple[State, dict[str, Any]]:
    """Return the tensors of a file, and the arguments that fairseq keeps beside them.

    Nothing in the file is executed: pickled files are read with `weights_only`.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is no file of weights: they end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path), {}
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError and others
        raise ValueError(f"{path} is damaged, or holds more than weights") from error
    args: dict[str, Any] = {}
    # deepspeed, by which the authors of BEiT-3 fine-tune, says "module".
    key = next((k for k in ("model", "module") if _is_dict(held, k)), None)
    if key is not None:
        kept = held.get("args") or (held.get("cfg") or {}).get("model")
        args = vars(kept) if isinstance(kept, argparse.Namespace) else dict(kept or {})
        held = held[key]
    if not isinstance(held, dict) or not all(isinstance(t, torch.Tensor) for t in held.values()):
        raise ValueError(f"{path} is no state dict")
    return held, args


def _is_dict(held: Any, key: str) -> bool:
    return isinstance(held, dict) and isinstance(held.get(key), dict)


def save_weight_file(model: nn.Module, name: str, directory: Path) -> None:
    """Write a model of ours as another library reads it.

    Args:
        model: Of ours.
        name: One of `FORMATS`.
        directory: To write `model.safetensors` in, and the file of arguments.
    """
    from safetensors.torch import save_file

    form = FORMATS[name]
    state, args = form.write(model)
    (directory / form.arguments).write_text(json.dumps(args, indent=2) + "\n", encoding="utf-8")
    state = {key: tensor.detach().cpu().clone() for key, tensor in state.items()}
    save_file(state, directory / WEIGHTS, metadata={"format": "pt"})
