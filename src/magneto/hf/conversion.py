"""Conversion of weights between Magneto and other libraries.

This module converts models of the library transformers, torch's `TransformerEncoder`, and weight
files of timm, torchscale and BEiT-3. A converted model has the same outputs, up to rounding. A
feature that the target lacks raises ValueError.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.config import error_line, nearest
from magneto.files import read_object
from magneto.hf import timm, torchscale
from magneto.hf.export import auto_class
from magneto.hf.families import FORMATS, KOSMOS2
from magneto.hf.layout import (
    ModelFormat,
    Names,
    State,
    WeightFormat,
    check_round_trip,
    fill,
    read_state,
    tensor,
    tensor_pairs,
    without_prefix,
    write_state,
)
from magneto.hf.wrapper import register
from magneto.nn.config import Activation, TransformerConfig
from magneto.nn.transformer import Encoder

NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))
# Model of images and texts. Only the text model is converted.
WHOLE_KOSMOS2 = "kosmos-2"
# Regular expression for tensors besides a head that Magneto does not read.
UNREAD = "position_ids$|^pooler|embed_tokens"
# Formats of weight files; the first that fits is used.
FILE_FORMATS: tuple[WeightFormat, ...] = (*torchscale.FORMATS, *timm.FORMATS)
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
WRITTEN = tuple(dict.fromkeys(form.name for form in FILE_FORMATS))
ARGUMENTS = "torchscale.json"
WEIGHTS = "model.safetensors"


def load(source: str | Path | nn.Module) -> nn.Module:
    """Convert a transformers model to a Magneto model, in evaluation mode.

    Args:
        source: A transformers model, its directory, or its name on the hub. Supported models are
            GPT-2, Llama, Mistral, BERT, BART, Marian, ViT, BEiT, and the text model of Kosmos-2.

    Returns:
        A `LanguageModel`, `TextEncoder`, `MaskedLanguageModel`, `TextClassifier`,
            `TranslationModel` or `ImageClassifier`, with the source's dropout rates. If `source` is
            a model in memory, an unsupported head is dropped.

    Raises:
        ValueError: If Magneto does not support the architecture or an option.
        ValueError: If a directory lacks weights or has an unsupported head.
        FileNotFoundError: If `source` is neither a directory nor a name on the hub.
    """
    return load_with_config(source)[0]


def load_with_config(source: str | Path | nn.Module) -> tuple[nn.Module, Any]:
    """Load a model as `load` does; return the model and transformers' configuration."""
    config = read_config(source)
    if getattr(config, "quantization_config", None):
        raise ValueError(f"{config.model_type} with a quantization_config is not supported. Give "
                         "the unquantised model.")  # fmt: skip
    if config.model_type == WHOLE_KOSMOS2:
        if not isinstance(source, nn.Module):
            kind = _theirs("Kosmos2ForConditionalGeneration")
            source = _from_pretrained(kind, source, ignored="")
        source, config = source.text_model, config.text_config  # type: ignore[union-attr]
    if isinstance(source, nn.Module):
        form = find_format(config.model_type, type(source).__name__)
        state = source.state_dict()
    else:
        name = (config.architectures or [""])[0]
        form = find_format(config.model_type, name)
        # In an unsupported class, the remaining tensors are its head.
        known = form.ignored if name in (*form.classes, "") else UNREAD
        absent = f"{form.ignored}|logits_bias$"
        kind = _theirs(form.classes[0])
        state = _from_pretrained(kind, source, form.prefix, absent, known).state_dict()
    our_config = form.ours(config)
    state = without_prefix(state, form.prefix)
    made = read_state(tensor_pairs(our_config, form.names), state, form.ignored)
    made |= form.computed(config, our_config)
    model = form.model(our_config)
    # BART's and Marian's models without head lack the logits' bias, which is then zero.
    fill(model, {name: tensor.detach().clone() for name, tensor in made.items()}, "logits_bias$")
    return model.eval(), config


def load_export(source: str | Path, config: Any) -> nn.Module:
    """Load the model of a directory that Magneto exported, in evaluation mode.

    Raises:
        ValueError: If weights are damaged, missing or unknown.
    """
    import transformers

    auto = getattr(transformers, auto_class((config.architectures or [""])[0]))
    return _from_pretrained(auto, source).float().unwrap()


def _from_pretrained(
    kind: Any, source: str | Path, prefix: str = "", absent: str = "^$", ignored: str = "^$"
) -> Any:
    # The regular expressions match names, without the prefix, of tensors that the model may lack
    # (`absent`), and of tensors that it need not know (`ignored`).
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # missing tensors are reported by the caller
    try:
        model, found = kind.from_pretrained(
            source, output_loading_info=True, trust_remote_code=False, ignore_mismatched_sizes=True
        )
    except UnpicklingError as error:  # its message advises to execute the file
        raise ValueError(f"{source} is damaged, or contains more than weights") from error
    except OSError:
        raise
    except Exception as error:  # exceptions of torch, safetensors and transformers
        raise ValueError(f"{source}: {error_line(error)}") from error
    finally:
        logging.set_verbosity(before)
    for key, shape, expected in sorted(found["mismatched_keys"]):
        raise ValueError(f"{source}: the shape of {key} is {tuple(shape)}, but must be "
                         f"{tuple(expected)}")  # fmt: skip
    for keys, words, known in (
        ("missing_keys", "has no", absent), ("unexpected_keys", "has an unknown tensor", ignored),
    ):  # fmt: skip
        names = sorted(key.removeprefix(prefix) for key in found[keys])
        if left := [name for name in names if not re.search(known, name)]:
            raise ValueError(f"{source} {words} {left[0]}, read as {kind.__name__}")
    return model


def read_config(source: str | Path | nn.Module) -> Any:
    """Return transformers' configuration of a model, directory or name on the hub."""
    if isinstance(source, nn.Module):
        if not hasattr(source, "config"):
            raise ValueError(f"{type(source).__name__} has no config. Give a transformers model; "
                             "for a TransformerEncoder of torch, call from_torch")  # fmt: skip
        return source.config
    held = Path(source, "config.json")
    if held.is_file():
        kind = read_object(held).get("model_type")
        if not isinstance(kind, str):
            raise ValueError(f"{held} has no model_type. Give a directory that the library "
                             "transformers wrote.")  # fmt: skip
        if not kind.startswith("magneto"):
            find_format(KOSMOS2.name if kind == WHOLE_KOSMOS2 else kind)
    from transformers import AutoConfig

    register()
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except OSError as error:
        raise FileNotFoundError(f"no Hugging Face model in {source}") from error
    except Exception as error:  # transformers' validation has exceptions of its own
        raise ValueError(f"{source}: {error_line(error)}") from error


def to_transformers(model: nn.Module, name: str, **values: Any) -> Any:
    """Convert a Magneto model to a transformers model, in evaluation mode.

    `name` is a `model_type` of transformers, such as "gpt2". `values` are further fields of
    transformers' configuration, such as `eos_token_id`.

    Raises:
        ValueError: If no transformers model of this type has the same outputs.
    """
    of_model = [form for form in FORMATS if type(model) is form.model]
    form = next((f for f in of_model if f.name == name), None)
    if form is None:
        fitting = dict.fromkeys(form.name for form in of_model)
        raise ValueError(f"cannot convert a {type(model).__name__} to {name!r}. "
                         f"Supported targets: {', '.join(fitting) or 'none'}.")  # fmt: skip
    our_config: Any = model.config
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    values = {**ends, **form.theirs(our_config), **values}
    try:
        their_config = _theirs(form.config)(**values)
    except Exception as error:  # transformers' validation has exceptions of its own
        raise ValueError(f"{name} cannot represent this model: {error_line(error)}") from error
    check_round_trip(our_config, form.ours(their_config), name)
    state = model.state_dict()
    for key, expected in form.computed(their_config, our_config).items():
        if not torch.equal(state.pop(key).float().cpu(), expected):
            raise ValueError(f"{name} cannot represent this model: {key} is fixed in {name}, but "
                             "was trained in this model")  # fmt: skip
    written = write_state(tensor_pairs(our_config, form.names), state)
    theirs = _theirs(form.classes[0])(their_config, **form.options)
    own = {key: key.removeprefix(form.prefix) for key in theirs.state_dict()}
    given = {key: written[short] for key, short in own.items() if short in written}
    return fill(theirs, given, form.absent).eval()


def find_format(name: str, class_name: str = "") -> ModelFormat:
    """Return the format of a `model_type`.

    If several formats have this `model_type`, the format for the class `class_name` is preferred.
    """
    named = [form for form in FORMATS if form.name == name]
    if not named:
        raise ValueError(f"cannot convert model_type {name!r}, only {', '.join(NAMES)}"
                         f"{nearest(name, NAMES)}")  # fmt: skip
    return next((form for form in named if class_name in form.classes), named[0])


def _theirs(name: str) -> Any:
    import transformers

    if hasattr(transformers, name):
        return getattr(transformers, name)
    from transformers.models.kosmos2 import modeling_kosmos2  # has the text models

    return getattr(modeling_kosmos2, name)


def from_torch(encoder: nn.TransformerEncoder) -> Encoder:
    """Convert torch's TransformerEncoder to an `Encoder`, in evaluation mode.

    With `norm_first` (Pre-LN), torch's encoder must have a final norm. Without `norm_first`
    (Post-LN), torch's encoder must not have a final norm. The returned `Encoder` has no dropout.
    Its inputs have the shape (batch, length, width).

    Raises:
        ValueError: If Magneto does not support an option.
    """
    every: Any = encoder.layers
    first = every[0]
    kinds: set[tuple[bool, int, Activation]] = {
        (e.norm_first, e.self_attn.num_heads, _activation(e.activation)) for e in every
    }
    if len(kinds) > 1:
        raise ValueError("layers with different norm_first, nhead or activation are not supported")
    ((before, heads, activation),) = kinds
    if before != isinstance(encoder.norm, nn.LayerNorm):
        raise ValueError("norm_first=True needs a final LayerNorm, and norm_first=False needs "
                         "an encoder without final LayerNorm")  # fmt: skip
    epsilons = {norm.eps for norm in encoder.modules() if isinstance(norm, nn.LayerNorm)}
    if len(epsilons) > 1:
        raise ValueError(f"norms with different eps are not supported: {sorted(epsilons)}")
    config = TransformerConfig(
        width=first.linear1.in_features,
        layers=len(encoder.layers),
        heads=heads,
        ffn_width=first.linear1.out_features,
        placement="pre" if before else "post",
        activation=activation,
        norm_eps=first.norm1.eps,
        bias=first.linear1.bias is not None,
    )
    slot, attention = "before" if before else "after", "layers.*.self_attention.attention"
    names: Names = {
        f"{attention}.qkv_proj.weight": tensor("layers.*.self_attn.in_proj_weight"),
        f"{attention}.qkv_proj.bias": tensor("layers.*.self_attn.in_proj_bias"),
        f"{attention}.out_proj": "layers.*.self_attn.out_proj",
        f"layers.*.self_attention.{slot}": "layers.*.norm1",
        "layers.*.feed_forward.mlp.fc1": "layers.*.linear1",
        "layers.*.feed_forward.mlp.fc2": "layers.*.linear2",
        f"layers.*.feed_forward.{slot}": "layers.*.norm2",
        "final_norm": "norm",
    }
    model = Encoder(config)
    fill(model, read_state(tensor_pairs(config, names), encoder.state_dict()))
    return model.eval()


def _activation(function: Any) -> Activation:
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu:
        return "gelu"
    if isinstance(function, nn.GELU):
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    raise ValueError(f"activation {function} has no counterpart in Magneto")


def is_weight_directory(path: Path) -> bool:
    """Return whether a directory has a configuration file of timm or torchscale."""
    return (path / ARGUMENTS).is_file() or "architecture" in _held(path / timm.CONFIG)


def _held(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def load_weight_file(path: Path, args: dict[str, Any] | None = None) -> nn.Module:
    """Load weights of timm, torchscale or BEiT-3 as a Magneto model in evaluation mode.

    The path is a weight file or a directory. A directory must contain `model.safetensors`
    and either `config.json` (timm) or `torchscale.json` (torchscale, BEiT-3). `args` are
    arguments of timm or torchscale, such as `num_heads`. Values in `args` override the arguments in
    files.

    Raises:
        ValueError: If the format or an option is not supported.
        FileNotFoundError: If there is no such file.
    """
    found: dict[str, Any] = {}
    if path.is_dir():
        held = _held(path / timm.CONFIG)
        found = {key: held[key] for key in ("architecture", "global_pool") if key in held}
        found |= {**held.get("model_args", {}), **_held(path / ARGUMENTS)}
        path = path / WEIGHTS
    state, kept = read_weights(path)
    try:
        return load_weights(state, {**kept, **found, **(args or {})})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def load_weights(state: Mapping[str, Tensor], args: Mapping[str, Any] | None = None) -> nn.Module:
    """Convert tensors and arguments of timm, torchscale or BEiT-3 to a Magneto model.

    Raises:
        ValueError: If the format or an option is not supported.
    """
    form = next((form for form in FILE_FORMATS if form.fits(state, args or {})), None)
    if form is None:
        raise ValueError("unknown weights. Give weights of timm, torchscale or BEiT-3. The "
                         f"first tensor is {next(iter(state), None)!r}")  # fmt: skip
    return form.load(state, args or {})


def write_weights(model: nn.Module, name: str) -> tuple[State, dict[str, Any]]:
    """Convert a Magneto model to tensors and arguments of format `name`, or raise ValueError."""
    fitting = [form for form in FILE_FORMATS if (form.name, form.model) == (name, type(model))]
    if not fitting:
        raise ValueError(f"cannot convert a {type(model).__name__} to {name}")
    return fitting[0].save(model)


def read_weights(path: Path) -> tuple[State, dict[str, Any]]:
    """Return a file's tensors, and its fairseq arguments ({} if it has none).

    Code in the file is not executed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is not a weight file. Give a {', '.join(SUFFIXES)} file.")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path), {}
        with torch.serialization.safe_globals([argparse.Namespace]):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # safetensors' own, RuntimeError, UnpicklingError and others
        raise ValueError(f"{path} is damaged, or contains more than weights") from error
    args: dict[str, Any] = {}
    for key in ("model", "module"):  # "module" in DeepSpeed's files, such as BEiT-3's
        if isinstance(held, dict) and isinstance(held.get(key), dict):
            kept = held.get("args") or (held.get("cfg") or {}).get("model")
            args = vars(kept) if isinstance(kept, argparse.Namespace) else dict(kept or {})
            held = held[key]
    if not isinstance(held, dict) or not all(isinstance(t, torch.Tensor) for t in held.values()):
        raise ValueError(f"{path} is not a state dict")
    return held, args


def save_weight_file(model: nn.Module, name: str, directory: Path) -> None:
    """Write `model.safetensors`, and the arguments as `config.json` (timm) or `torchscale.json`.

    `name` is a format in `WRITTEN`, such as "timm_vit".
    """
    from safetensors.torch import save_file

    state, args = write_weights(model, name)
    file = timm.CONFIG if "architecture" in args else ARGUMENTS
    (directory / file).write_text(json.dumps(args, indent=2) + "\n", encoding="utf-8")
    state = {key: tensor.detach().cpu().clone() for key, tensor in state.items()}
    save_file(state, directory / WEIGHTS, metadata={"format": "pt"})
