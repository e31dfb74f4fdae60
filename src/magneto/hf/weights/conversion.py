"""Other people's weights into our modules, and ours into theirs.

Only names and layouts change; outputs are equal to rounding. What has no counterpart is an error
that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from magneto.config import error_line
from magneto.hf.weights import bart, bert, gpt2, kosmos2, llama, vit
from magneto.hf.weights.layout import (
    Format,
    Pair,
    State,
    check_same,
    fill,
    in_layers,
    modules,
    read_state,
    without_prefix,
    write_state,
)
from magneto.nn.config import Activation, TransformerConfig
from magneto.nn.transformer import Encoder

# Of one name, the first reads the classes that no other names.
FORMATS = (*gpt2.FORMATS, *bert.FORMATS, *bart.FORMATS, *vit.FORMATS, *kosmos2.FORMATS,
           *llama.FORMATS)  # fmt: skip
NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))


def load(source: str | Path | nn.Module) -> nn.Module:
    """Load a transformers model as one of ours, in evaluation mode.

    Args:
        source: A directory, a name on the hub, or a transformers model: GPT-2, Llama, Mistral,
            BERT, BART, Marian, ViT, BEiT, Kosmos-2 (its text model).

    Returns:
        A `LanguageModel`, `TextEncoder`, `MaskedLanguageModel`, `TextClassifier`,
        `TranslationModel` or `ImageClassifier`. Of a model, heads of other kinds are left behind.
        Dropout rates come along.

    Raises:
        ValueError: If there is no counterpart for the architecture or one of its options, or if a
            directory lacks weights, or has a head of another kind.
        FileNotFoundError: If there is no such directory and no such name on the hub.
    """
    return load_with_config(source)[0]


def load_with_config(source: str | Path | nn.Module) -> tuple[nn.Module, Any]:
    """Load a transformers model as one of ours, and its configuration; see `load`."""
    config = read_config(source)
    if getattr(config, "quantization_config", None):
        raise ValueError(f"{config.model_type} with a quantization_config has no counterpart here: "
                         "its layers compute with rounded numbers")  # fmt: skip
    if config.model_type == "kosmos-2":
        if not isinstance(source, nn.Module):
            kosmos = _theirs("Kosmos2ForConditionalGeneration")
            source = kosmos.from_pretrained(source, trust_remote_code=False)
        source, config = source.text_model, config.text_config  # type: ignore[union-attr]
    if isinstance(source, nn.Module):
        form = find_format(config.model_type, type(source).__name__)
        state = source.state_dict()
    else:
        name = (config.architectures or [""])[0]
        form = find_format(config.model_type, name)
        state = _read_whole(source, form, name)
    our_config = form.ours(config)
    state = without_prefix(state, form.prefix)
    made = read_state(form.pairs(our_config), state, form.ignored)
    made |= form.computed(config, our_config)
    model = form.model(our_config)
    # BART's and Marian's bare models have no bias of the logits; it is then zero.
    fill(model, {name: tensor.detach().clone() for name, tensor in made.items()}, "logits_bias$")
    return model.eval(), config


def _read_whole(source: str | Path, form: Format, name: str) -> State:
    """Read the tensors of a directory of class `name`; none is drawn, and no head is left behind.

    Raises:
        ValueError: If tensors lack, or there are some for which there is no place.
    """
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # its own table of the same
    try:
        model, found = _theirs(form.classes[0]).from_pretrained(
            source, output_loading_info=True, trust_remote_code=False
        )
    except UnpicklingError as error:  # whose words advise to run what is in the file
        raise ValueError(f"{source} is damaged, or holds more than weights") from error
    finally:
        logging.set_verbosity(before)
    missing = _others(found["missing_keys"], form, f"{form.ignored or '^$'}|logits_bias$")
    if missing:
        raise ValueError(f"{source} has no {missing}, which a {form.classes[0]} needs")
    # Of a class that is not read, what is left over is its head.
    known = form.ignored if name in (*form.classes, "") else "position_ids$|^pooler|embed_tokens"
    if left := _others(found["unexpected_keys"], form, known or "^$"):
        raise ValueError(f"{source} is a {name} and has {left}: there is no place here for it; "
                         f"read are {', '.join(form.classes)}")  # fmt: skip
    return model.state_dict()


def _others(keys: Iterable[str], form: Format, known: str) -> str:
    names = sorted(key.removeprefix(form.prefix) for key in keys)
    names = [name for name in names if not re.search(known, name)]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def read_config(source: str | Path | nn.Module) -> Any:
    """Return the transformers configuration of a model, a directory or a name on the hub."""
    if isinstance(source, nn.TransformerEncoder):
        raise ValueError("this is torch's own encoder: use magneto.hf.from_torch")
    if isinstance(source, nn.Module):
        if not hasattr(source, "config"):
            raise ValueError(f"{type(source).__name__} is no model of transformers: no config")
        return source.config
    from transformers import AutoConfig

    from magneto.hf.configuration import register

    register()
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except OSError as error:
        raise FileNotFoundError(f"no Hugging Face model in {source}") from error
    except ValueError as error:
        # What transformers does not know is none of ours either: say what is.
        text = Path(source, "config.json")
        if text.is_file():
            held = json.loads(text.read_text(encoding="utf-8"))
            kind = held.get("model_type") if isinstance(held, dict) else None
            if not isinstance(kind, str):
                raise ValueError(f"{text} says no model_type, by which models are known") from error
            find_format(kind)
        raise ValueError(f"{source}: {str(error).splitlines()[0]}") from error
    except Exception as error:  # its check of values has errors of its own
        raise ValueError(f"{source}: {error_line(error)}") from error


def to_transformers(model: nn.Module, name: str, **values: Any) -> Any:
    """Return one of our models as transformers' own, in evaluation mode.

    Args:
        model: Of ours.
        name: Their `model_type`, "gpt2" for example.
        **values: What else their configuration has, `eos_token_id` for example.

    Raises:
        ValueError: If theirs can't compute what ours does; the first difference is named.
    """
    of_model = [form for form in FORMATS if type(model) is form.model]
    form = next((f for f in of_model if f.name == name), None)
    if form is None:
        fitting = dict.fromkeys(form.name for form in of_model)
        raise ValueError(f"{name!r} has no counterpart of a {type(model).__name__}; "
                         f"there is {', '.join(fitting) or 'none'}")  # fmt: skip
    our_config: Any = model.config
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    values = {**ends, **form.theirs(our_config), **values}
    try:
        their_config = _theirs(form.config)(**values)
    except Exception as error:  # its check of values has errors of its own
        raise ValueError(f"{name} cannot hold this model: {error_line(error)}") from error
    check_same(our_config, form.ours(their_config), name)
    state = model.state_dict()
    for key, expected in form.computed(their_config, our_config).items():
        if not torch.equal(state.pop(key).float().cpu(), expected):
            raise ValueError(f"{name} computes what was trained here: {key}")
    written = write_state(form.pairs(our_config), state)
    theirs = _theirs(form.classes[0])(their_config, **form.options)
    own = {key: key.removeprefix(form.prefix) for key in theirs.state_dict()}
    given = {key: written[short] for key, short in own.items() if short in written}
    return fill(theirs, given, form.absent).eval()


def find_format(name: str, class_name: str = "") -> Format:
    """Return the format of a `model_type`, and of a class of it if one fits.

    Raises:
        ValueError: If there is none; all that there are come with the message.
    """
    named = [form for form in FORMATS if form.name == name]
    if not named:
        near = get_close_matches(name, NAMES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"cannot convert a {name!r} model{hint}, only {', '.join(NAMES)}")
    return next((form for form in named if class_name in form.classes), named[0])


def _theirs(name: str) -> Any:
    import transformers

    if hasattr(transformers, name):
        return getattr(transformers, name)
    from transformers.models import kosmos2 as package

    if hasattr(package, name):
        return getattr(package, name)
    from transformers.models.kosmos2 import modeling_kosmos2

    return getattr(modeling_kosmos2, name)


def from_torch(encoder: nn.TransformerEncoder) -> Encoder:
    """Return torch's own encoder as one of ours, in evaluation mode.

    Ours reads (batch, length, width) whatever `batch_first` was, and its dropout rates are 0.

    Args:
        encoder: With `norm_first` and a norm on top ("pre"), or with neither ("post").

    Raises:
        ValueError: If an option has no counterpart.
    """
    first: Any = encoder.layers[0]
    before = first.norm_first
    if before != (encoder.norm is not None):
        raise ValueError("norm_first needs a norm on top of the stack, and Post-LN has none")
    epsilons = {norm.eps for norm in encoder.modules() if isinstance(norm, nn.LayerNorm)}
    if len(epsilons) > 1:
        raise ValueError(f"norms with unlike eps have no counterpart here: {sorted(epsilons)}")
    config = TransformerConfig(
        width=first.linear1.in_features,
        layers=len(encoder.layers),
        heads=first.self_attn.num_heads,
        ffn_width=first.linear1.out_features,
        placement="pre" if before else "post",
        activation=_activation(first.activation),
        norm_eps=first.norm1.eps,
        bias=first.linear1.bias is not None,
    )
    model = Encoder(config)
    names = _encoder_pairs(len(encoder.layers), "before" if before else "after")
    return fill(model, read_state(names, encoder.state_dict())).eval()  # type: ignore[return-value]


def _activation(function: Any) -> Activation:
    if function is F.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is F.gelu:
        return "gelu"
    if isinstance(function, nn.GELU):
        return "gelu" if function.approximate == "none" else "gelu_tanh"
    raise ValueError(f"no counterpart for the activation {function}")


def _encoder_pairs(layers: int, slot: str) -> list[Pair]:
    names = {
        "self_attention.attention.out_proj": "self_attn.out_proj",
        f"self_attention.{slot}": "norm1",
        "feed_forward.mlp.fc1": "linear1",
        "feed_forward.mlp.fc2": "linear2",
        f"feed_forward.{slot}": "norm2",
    }
    made = modules({"final_norm": "norm"}) + in_layers(names, "layers", "layers", layers)
    for layer in range(layers):
        projection = f"layers.{layer}.self_attention.attention.qkv_proj"
        made += [
            Pair(f"{projection}.{kind}", (f"layers.{layer}.self_attn.in_proj_{kind}",))
            for kind in ("weight", "bias")
        ]
    return made
