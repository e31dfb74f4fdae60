"""Files of weights that are no transformers directory: .safetensors, .pt, fairseq's checkpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magneto.hf.formats.beit3 import is_beit3, load_beit3, to_beit3
from magneto.hf.formats.layout import State
from magneto.hf.formats.torchscale import load_torchscale, to_torchscale

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
ARGUMENTS = "torchscale.json"
WEIGHTS = "model.safetensors"
WRITTEN = ("torchscale", "beit3")


def load_weight_file(path: Path, args: dict[str, Any] | None = None) -> nn.Module:
    """Return torchscale's or BEiT-3's weights as a model of ours, in evaluation mode.

    Args:
        path: A file, or a directory with `model.safetensors` and `torchscale.json`.
        args: Arguments of torchscale's configuration, above those found beside the weights; of
            BEiT-3 only `encoder_attention_heads` is looked at.

    Raises:
        ValueError: If the file is neither, or no file of weights.
        FileNotFoundError: If it is not there.
    """
    found: dict[str, Any] = {}
    if path.is_dir():
        found = json.loads((path / ARGUMENTS).read_text(encoding="utf-8"))
        path = path / WEIGHTS
    state, held = read_weights(path)
    given = {**held, **found, **(args or {})}
    if is_beit3(state):
        return load_beit3(state, given.get("encoder_attention_heads"))
    if any(".ffn.fc1." in name or ".self_attn_layer_norm." in name for name in state):
        return load_torchscale(state, given)
    raise ValueError(f"{path} holds neither torchscale's nor BEiT-3's weights: "
                     f"its first tensor is {next(iter(state), None)!r}")  # fmt: skip


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
    if isinstance(held, dict) and isinstance(held.get("model"), dict):
        kept = held.get("args") or (held.get("cfg") or {}).get("model")
        args = vars(kept) if isinstance(kept, argparse.Namespace) else dict(kept or {})
        held = held["model"]
    if not isinstance(held, dict) or not all(isinstance(t, torch.Tensor) for t in held.values()):
        raise ValueError(f"{path} is no state dict")
    return held, args


def save_weight_file(model: nn.Module, name: str, directory: Path) -> None:
    """Write a model of ours as torchscale or timm's BEiT-3 read it.

    Args:
        model: Of ours.
        name: "torchscale" or "beit3".
        directory: To write `model.safetensors` in, and of torchscale `torchscale.json`, the
            arguments of its configuration.
    """
    from safetensors.torch import save_file

    args: dict[str, Any] = {}
    if name == "torchscale":
        state, args = to_torchscale(model)
        (directory / ARGUMENTS).write_text(json.dumps(args, indent=2) + "\n", encoding="utf-8")
    else:
        state = to_beit3(model)
    state = {key: tensor.detach().cpu().clone() for key, tensor in state.items()}
    save_file(state, directory / WEIGHTS, metadata={"format": "pt"})
