"""Every field of a configuration, theirs or ours, set to another value is honoured or refused."""

from collections.abc import Iterator
from copy import copy
from dataclasses import fields, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from magneto import PLACEMENTS, Placement, hf  # noqa: E402
from magneto.config import ConfigError  # noqa: E402
from magneto.hf.conversion import load_weights, write_weights  # noqa: E402
from magneto.hf.layout import not_held  # noqa: E402
from magneto.language.config import LanguageModelConfig, TextEncoderConfig  # noqa: E402
from magneto.language.models import LanguageModel, TextEncoder  # noqa: E402
from magneto.theory.placement import VARIANTS  # noqa: E402
from magneto.translation.config import TranslationConfig  # noqa: E402
from magneto.translation.model import TranslationModel  # noqa: E402
from magneto.vision.config import ImageClassifierConfig  # noqa: E402
from magneto.vision.models import ImageClassifier  # noqa: E402
from magneto.vision_language.config import QuestionAnsweringConfig  # noqa: E402
from magneto.vision_language.model import QuestionAnswerer  # noqa: E402
from tests.oracles.hf_models import THEIRS, answers, shaken, theirs  # noqa: E402

# May come back by another value that computes the same.
OTHERWISE = {"max_length", "key_value_heads", "head_dim", "windows", "embedding_scale"}
# Of heads that are not read, and of BEiT's segmentation.
NOT_READ = {"classifier_dropout", "summary_first_dropout", "classifier_drop_prob"}


# By default one model a family: the others have its map of names.
ONE_MAP = ("BertModel", "BertForSequenceClassification", "MistralForCausalLM", "MarianMTModel")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in ONE_MAP else []) for name in THEIRS]


# Fields of every configuration of transformers: tried with one model of theirs.
COMMON = set(transformers.PretrainedConfig().to_dict())
# One layer says what several do, in less time.
SHALLOW = dict.fromkeys(
    ("n_layer", "num_hidden_layers", "encoder_layers", "decoder_layers", "layers"), 1
)


def shallow(name: str, **changes: Any) -> Any:
    layers = {key: value for key, value in SHALLOW.items() if key in THEIRS[name]}
    return theirs(name, **(layers | changes))


def other_values(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value + 1]
    if isinstance(value, float):
        return [value + 0.25, 0.0]
    if isinstance(value, str):
        return ["relu", "silu", "gelu_new", "another"]
    return [1, True, "relu"] if value is None else []


def same(found: Any, expected: Tensor) -> bool:
    """Whether a model says what is expected."""
    answer = answers(found)
    return answer.shape == expected.shape and bool((answer - expected).abs().max() <= 2e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_fields_of_theirs(name: str) -> None:
    base = shallow(name)
    ours = hf.load(base)
    assert same(ours, answers(base))
    silent, tried = [], 0
    for key, value in base.config.to_dict().items():
        if key in COMMON and "GPT2" not in name:
            continue
        for other in [other for other in other_values(value) if other != value]:
            try:
                made = shallow(name, **{key: other})
                expected = answers(made)
            except Exception:  # transformers itself has no such model
                continue
            tried += 1
            try:
                loaded: Any = hf.load(made)
            except ValueError as error:
                assert len(str(error).splitlines()) == 1
                continue
            rate = "drop" in key and key not in NOT_READ
            if not same(loaded, expected) or (rate and loaded.config == ours.config):
                silent.append((key, other))
            if isinstance(value, int):
                break
    assert tried > 15 and not silent


def values_of(config: Any, name: str) -> Iterator[Any]:
    """Other values of a field, by its type."""
    value, hint = getattr(config, name), get_type_hints(type(config))[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        if get_origin(kind) is Literal:
            yield from get_args(kind)
        elif kind is bool:
            yield not value
        elif kind is int:
            yield from (2 * (value or 1), (value or 1) + 1)
        elif kind is float:
            yield (value or 0) + 0.125
        elif get_origin(kind) is tuple:
            yield from ([("k",), ("fc1", "out")] if name == "unbiased" else [(2,), (None, 3)])
        elif kind is type(None):
            yield None


# Of those that change no number, these are read by formats all the same.
HELD = {"layers", "rotary_base", "drop_path"}


def mutations(model: nn.Module, write: Any) -> Iterator[tuple[str, Any, Tensor | None, Any]]:
    """Of models that differ from one in a field: the field, what they say and what is written.

    Nothing is said by those that are refused, in one line.
    """
    config: Any = model.config
    no_number = not_held(config) - HELD | {"placement"}
    for name in [field.name for field in fields(config) if field.name not in no_number]:
        for value in [value for value in values_of(config, name) if value != getattr(config, name)]:
            try:
                made = shaken(type(model)(replace(config, **{name: value})))
                written = write(made)
            except ConfigError:  # no such model
                continue
            except ValueError as error:
                assert len(str(error).splitlines()) == 1
                yield name, value, None, None
            else:
                yield name, value, answers(made), written
            if isinstance(value, int):
                break


def silent_fields(model: Any, write: Any, read: Any) -> list[Any]:
    """Return what is written without an error, and comes back as something else.

    Args:
        model: Of ours.
        write: Makes theirs of a model of ours.
        read: Makes ours of what was written, and says what theirs computes if it can.
    """
    assert read(write(model)).config == model.config
    silent, tried = [], 0
    for name, value, answer, written in mutations(model, write):
        tried += 1
        if answer is None:
            continue
        again = read(written)
        models = [again, written] if isinstance(written, nn.Module) else [again]
        kept = name in not_held(model.config) or getattr(again.config, name) == value
        if not kept and name not in OTHERWISE:
            silent.append((name, value))
        if not all(same(each, answer) for each in models):
            silent.append((name, value))
    assert tried > 20
    return silent


ROWS: dict[str, Placement] = PLACEMENTS | VARIANTS


def check_rows(model: Any, fitting: set[str], write: Any, read: Any) -> None:
    """Every row of the placement table is written, or refused in a line that names it."""
    for name, row in ROWS.items():
        if row.final != "norm" and getattr(model.config, "pooling", "") == "mean_then_norm":
            continue  # there is no such model
        if name in fitting:
            assert read(write(type(model)(replace(model.config, placement=name)))).config.row is row
            row = replace(row, alpha=lambda depth: 2.0)  # of the same name, but another
        other = copy(model)  # its configuration is enough
        other.config = replace(model.config, placement=row)
        with pytest.raises(ValueError, match=f"placement is (a changed )?'{name}'") as found:
            write(other)
        assert len(str(found.value).splitlines()) == 1


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_fields_of_ours(name: str) -> None:
    base = shallow(name)
    kind = base.config.model_type
    ours: Any = hf.load(base)
    assert not silent_fields(ours, lambda m: hf.to_transformers(m, kind), hf.load)
    if ours.config.row.name != "sub":  # Kosmos-2's positions are computed, and no others are taken
        check_rows(ours, {ours.config.row.name}, lambda m: hf.to_transformers(m, kind), hf.load)


TEXT: dict[str, Any] = {
    "width": 16, "heads": 2, "ffn_width": 24, "vocab_size": 24, "positions": "learned",
    "max_length": 12,
}  # fmt: skip
PICTURE: dict[str, Any] = {
    "width": 16, "layers": 1, "heads": 2, "ffn_width": 24, "image_size": 8, "patch_size": 4,
    "classes": 3, "class_token": "learned", "positions": "learned", "max_length": 5,
}  # fmt: skip
STACKS: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}
BEFORE: dict[str, Any] = {"norm_eps": 1e-6, "placement": "pre"}
WRITTEN: list[tuple[str, Any, Any]] = [
    ("torchscale", LanguageModel, LanguageModelConfig(**TEXT, layers=1)),
    ("torchscale", TextEncoder, TextEncoderConfig(**TEXT, layers=1)),
    ("torchscale", TranslationModel, TranslationConfig(**TEXT, **STACKS)),
    ("timm_vit", ImageClassifier, ImageClassifierConfig(**PICTURE, **BEFORE)),
    ("timm_beit", ImageClassifier, ImageClassifierConfig(
        **PICTURE, **BEFORE, unbiased=("k",), grid_positions="relative_bias", layer_scale=0.1)),
    ("timm_eva", ImageClassifier, ImageClassifierConfig(
        **PICTURE, norm_eps=1e-6, placement="eva02", unbiased=("k",), activation="swiglu",
        grid_positions="rotary", reference_grid=16)),
    ("beit3", ImageClassifier, ImageClassifierConfig(**PICTURE, pooling="mean_then_norm")),
    ("beit3", QuestionAnswerer, QuestionAnsweringConfig(
        **{key: PICTURE[key] for key in list(PICTURE)[:6]}, vocab_size=24, max_length=12,
        answers=3)),
]  # fmt: skip


PLACED = {
    "torchscale": ("pre", "post", "sub", "deepnorm"), "timm_vit": ("pre", "sub"),
    "timm_beit": ("pre",), "timm_eva": ("pre", "eva02", "sub"), "beit3": ("sub",),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize(("name", "kind", "config"), WRITTEN)
def test_fields_of_ours_in_files_of_weights(name: str, kind: Any, config: Any) -> None:
    def write(model: nn.Module) -> tuple[Any, dict[str, Any]]:
        return write_weights(model, name)

    def read(written: tuple[Any, dict[str, Any]]) -> nn.Module:
        state, args = written
        return load_weights(state, args | args.get("model_args", {}))

    assert not silent_fields(shaken(kind(config)), write, read)
    check_rows(kind(config), set(PLACED[name]), write, read)
