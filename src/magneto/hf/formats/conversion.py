"""Other people's weights into our modules, and ours into theirs.

Only names and layouts change; outputs are equal to rounding. What has no counterpart is an error
that names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magneto.hf.formats import bart, bert, gpt2, kosmos2, vit
from magneto.hf.formats.layout import (
    Pair,
    State,
    check_same,
    fill,
    read_state,
    without_prefix,
    write_state,
)
from magneto.language.classification.model import TextClassifier
from magneto.language.masked_language import MaskedLanguageModel
from magneto.language.model import LanguageModel
from magneto.language.text_encoder import TextEncoder
from magneto.translation.model import TranslationModel
from magneto.vision.classification.model import ImageClassifier


def nothing(their_config: Any, our_config: Any) -> State:
    """Return no tensors: theirs stores all that ours has."""
    return {}


@dataclass(frozen=True)
class Format:
    """One model class of transformers, and ours that computes the same.

    Attributes:
        name: Their `model_type`.
        config: Name of their configuration's class.
        classes: Names of their classes whose weights it reads; the first is what is written.
        model: Our class.
        ours: Our configuration from theirs.
        theirs: The values of theirs from ours.
        pairs: Which tensor is which.
        prefix: Of their tensors' names, in a model with a head.
        ignored: Of their tensors, what may be left behind, as a regular expression.
        absent: Of their tensors, what is computed and need not be written.
        computed: Tensors of ours that theirs computes.
        options: Of the constructor of their class.
    """

    name: str
    config: str
    classes: tuple[str, ...]
    model: Callable[[Any], nn.Module]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], dict[str, Any]]
    pairs: Callable[[Any], list[Pair]]
    prefix: str = "model."
    ignored: str = ""
    absent: str = ""
    computed: Callable[[Any, Any], State] = nothing
    options: dict[str, Any] = field(default_factory=dict)


def _kosmos2_positions(their_config: Any, our_config: Any) -> State:
    first = their_config.pad_token_id + 1
    table = kosmos2.fairseq_sinusoids(our_config.max_length, our_config.width, first)
    return {"decoder.position_embedding.table.weight": table}


# Of one name, the first reads the classes that no other names.
FORMATS = (
    Format(
        "gpt2", "GPT2Config", ("GPT2LMHeadModel", "GPT2Model"), LanguageModel, gpt2.ours,
        gpt2.theirs, gpt2.pairs, "transformer.", r"^lm_head|attn\.(masked_)?bias$",
    ),
    Format(
        "bert", "BertConfig", ("BertModel",), TextEncoder, bert.ours, bert.theirs, bert.pairs,
        "bert.", r"^pooler|^cls\.|^classifier|^qa_outputs|position_ids$",
        options={"add_pooling_layer": False},
    ),
    Format(
        "bert", "BertConfig", ("BertForMaskedLM", "BertForPreTraining"), MaskedLanguageModel,
        bert.ours_masked, bert.theirs, bert.masked_pairs, "bert.",
        r"^pooler|^cls\.predictions\.(bias|decoder)|^cls\.seq_relationship|position_ids$",
        absent=r"^cls\.predictions\.bias$",
    ),
    Format(
        "bert", "BertConfig", ("BertForSequenceClassification",), TextClassifier,
        bert.ours_classifier, bert.theirs, bert.classifier_pairs, "bert.", "position_ids$",
    ),
    Format(
        "bart", "BartConfig", ("BartForConditionalGeneration", "BartModel"), TranslationModel,
        bart.ours, bart.theirs, bart.pairs, ignored=r"^lm_head|embed_tokens",
    ),
    Format(
        "marian", "MarianConfig", ("MarianMTModel", "MarianModel"), TranslationModel,
        bart.ours_marian, bart.theirs, bart.marian_pairs,
        ignored=r"^lm_head|embed_tokens|embed_positions", absent="embed_positions",
    ),
    Format(
        "vit", "ViTConfig", ("ViTForImageClassification",), ImageClassifier, vit.ours, vit.theirs,
        vit.pairs, "vit.", r"^pooler|mask_token$",
    ),
    Format(
        "kosmos_2_text_model", "Kosmos2TextConfig", ("Kosmos2TextForCausalLM", "Kosmos2TextModel"),
        LanguageModel, kosmos2.ours, kosmos2.theirs, kosmos2.pairs, ignored="^lm_head",
        computed=_kosmos2_positions,
    ),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))


def load(source: str | Path | nn.Module) -> nn.Module:
    """Load a transformers model as one of ours, in evaluation mode.

    Args:
        source: A directory, a name on the hub, or a transformers model: GPT-2, BERT, BART, Marian,
            ViT, Kosmos-2 (its text model).

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
    if config.model_type == "kosmos-2":
        if not isinstance(source, nn.Module):
            source = _theirs("Kosmos2ForConditionalGeneration").from_pretrained(source)
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
        model, found = _theirs(form.classes[0]).from_pretrained(source, output_loading_info=True)
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

    from magneto.hf.registration import register

    register()
    try:
        return AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"no Hugging Face model in {source}") from error
    except ValueError as error:
        # What transformers does not know is none of ours either: say what is.
        text = Path(source, "config.json")
        if text.is_file():
            find_format(str(json.loads(text.read_text(encoding="utf-8")).get("model_type")))
        raise ValueError(f"{source}: {str(error).splitlines()[0]}") from error


def to_transformers(model: nn.Module, name: str, **values: Any) -> Any:
    """Return one of our models as transformers' own, in evaluation mode.

    Args:
        model: Of ours.
        name: Their `model_type`, "gpt2" for example.
        **values: What else their configuration has, `eos_token_id` for example.

    Raises:
        ValueError: If theirs can't compute what ours does; the first difference is named.
    """
    form = next((f for f in FORMATS if f.name == name and type(model) is f.model), None)
    if form is None:
        fitting = [f.name for f in FORMATS if type(model) is f.model]
        raise ValueError(f"{name!r} has no counterpart of a {type(model).__name__}; "
                         f"there is {', '.join(fitting) or 'none'}")  # fmt: skip
    our_config: Any = model.config
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    values = {**ends, **form.theirs(our_config), **values}
    their_config = _theirs(form.config)(**values)
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
