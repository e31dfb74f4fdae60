"""Files of weights of other libraries: timm's, torchscale's, BEiT-3's authors', fairseq's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.hf.formats.beit3 import is_beit3, load_beit3, to_beit3
from magneto.hf.formats.beit3_multiway import load_multiway, to_multiway
from magneto.hf.formats.layout import State
from magneto.hf.formats.timm import timm_arguments
from magneto.hf.formats.timm_beit import is_timm_beit, load_timm_beit, to_timm_beit
from magneto.hf.formats.timm_eva import is_timm_eva, load_timm_eva, to_timm_eva
from magneto.hf.formats.timm_vit import is_timm_vit, load_timm_vit, to_timm_vit
from magneto.hf.formats.torchscale import load_torchscale, to_torchscale
from magneto.vision.classifier import ImageClassifier

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
ARGUMENTS = "torchscale.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


def is_torchscale(names: Mapping[str, Tensor]) -> bool:
    """Whether tensors of these names are torchscale's."""
    return any(".ffn.fc1." in name or ".self_attn_layer_norm." in name for name in names)


def load_any_beit3(state: Mapping[str, Tensor], args: dict[str, Any]) -> nn.Module:
    """Return BEiT-3's image classifier, which has `fc_norm`, or a model of images with texts."""
    return (load_beit3 if "fc_norm.weight" in state else load_multiway)(state, args)


def to_any_beit3(model: nn.Module) -> tuple[State, dict[str, Any]]:
    """Return tensors and arguments of either."""
    return (to_beit3 if type(model) is ImageClassifier else to_multiway)(model)


@dataclass(frozen=True)
class WeightFormat:
    """A library's files of weights.

    Attributes:
        arguments: Name of the file beside the weights, with what they do not show.
        fits: Whether tensors of these names are the library's.
        load: Our model of them and of the arguments.
        write: Tensors and arguments of our model.
    """

    arguments: str
    fits: Callable[[Mapping[str, Tensor]], bool]
    load: Callable[[Mapping[str, Tensor], dict[str, Any]], nn.Module]
    write: Callable[[nn.Module], tuple[State, dict[str, Any]]]


# The first that fits is taken: a Beit has an Eva's names, and more.
FORMATS = {
    "beit3": WeightFormat(ARGUMENTS, is_beit3, load_any_beit3, to_any_beit3),
    "timm_beit": WeightFormat(CONFIG, is_timm_beit, load_timm_beit, to_timm_beit),
    "timm_eva": WeightFormat(CONFIG, is_timm_eva, load_timm_eva, to_timm_eva),
    "timm_vit": WeightFormat(CONFIG, is_timm_vit, load_timm_vit, to_timm_vit),
    "torchscale": WeightFormat(ARGUMENTS, is_torchscale, load_torchscale, to_torchscale),
}
WRITTEN = tuple(FORMATS)


def is_weight_directory(path: Path) -> bool:
    """Whether a directory holds weights with the arguments of timm or torchscale beside them."""
    return (path / ARGUMENTS).is_file() or "architecture" in _read_json(path / CONFIG)


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
        found = timm_arguments(_read_json(path / CONFIG)) | _read_json(path / ARGUMENTS)
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
