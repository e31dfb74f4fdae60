"""A model's first values depend on the seed and on names, whichever way it is built."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.language.models import LanguageModel, MaskedLanguageModel, TextClassifier
from magneto.theory.placement import PLACEMENTS
from magneto.training.distributed import World
from magneto.training.model import build_on_meta, initial_model
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.encoder import ImageClassifier
from tests.unit.training.toy import Toy

SIZES: dict[str, Any] = {"width": 32, "heads": 4, "ffn_width": 48}
TEXT: dict[str, Any] = {**SIZES, "layers": 2, "vocab_size": 50}
ALONE = World(0, 1, torch.device("cpu"), "none")
MODELS = {
    "causal": lambda: LanguageModel(LanguageModelConfig(**TEXT, tie_embeddings=False)),
    "tied": lambda: LanguageModel(LanguageModelConfig(**TEXT, tie_embeddings=True)),
    "masked": lambda: MaskedLanguageModel(MaskedLanguageModelConfig(**TEXT, positions="t5")),
    "classifier": lambda: TextClassifier(
        TextClassifierConfig(**TEXT, classes=3, token_types=2, positions="learned")
    ),
    "translation": lambda: TranslationModel(
        TranslationConfig(**SIZES, vocab_size=50, encoder_layers=2, decoder_layers=2)
    ),
    "images": lambda: ImageClassifier(
        ImageClassifierConfig(**SIZES, layers=2, image_size=8, patch_size=2, class_token="learned")
    ),
    "swiglu": lambda: LanguageModel(
        LanguageModelConfig(**TEXT, activation="swiglu", key_value_heads=2, norm="rmsnorm")
    ),
}


class Built(Toy):
    """A task with any model."""

    def __init__(self, build: Any) -> None:
        super().__init__()
        self.build_model = build  # type: ignore[method-assign]


def drawn(build: Any, seed: int = 3) -> dict[str, Tensor]:
    return initial_model(Built(build), seed, ALONE).state_dict()


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_drawn_module_by_module(name: str) -> None:
    assert build_on_meta(MODELS[name])[1] == ""
    made = initial_model(Built(MODELS[name]), 3, ALONE)
    torch.manual_seed(0)
    usual = MODELS[name]()
    for (key, tensor), (_, other) in zip(
        made.named_parameters(), usual.named_parameters(), strict=True
    ):
        assert tensor.requires_grad == other.requires_grad and tensor.device.type == "cpu", key
        if tensor.numel() > 500:
            assert tensor.std().item() == pytest.approx(other.std().item(), rel=0.15), key
        elif other.unique().numel() == 1:
            assert torch.equal(tensor, other), key
    for (key, tensor), (_, other) in zip(made.named_buffers(), usual.named_buffers(), strict=True):
        assert torch.equal(tensor, other), key


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_so_is_every_placement(placement: str) -> None:
    config = LanguageModelConfig(**TEXT, placement=placement)
    assert build_on_meta(lambda: LanguageModel(config))[1] == ""


def test_values_depend_on_seed_and_name_alone() -> None:
    config = LanguageModelConfig(**TEXT, placement="pre")  # whose gain depends on no depth
    short, long = (
        drawn(lambda layers=layers: LanguageModel(replace(config, layers=layers)))
        for layers in (2, 3)
    )
    assert all(torch.equal(short[name], long[name]) for name in short)
    torch.manual_seed(99)
    assert equal(short, drawn(lambda: LanguageModel(config)))
    other = drawn(lambda: LanguageModel(config), seed=4)
    assert not torch.equal(other["embedding.table.weight"], short["embedding.table.weight"])
    first, second = (short[f"decoder.layers.{i}.feed_forward.mlp.fc1.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_ties_hold_and_the_table_is_drawn_once() -> None:
    model = initial_model(Built(MODELS["tied"]), 3, ALONE)
    assert model.head.weight is model.embedding.table.weight  # type: ignore[union-attr]
    free = drawn(MODELS["causal"])
    tied = drawn(MODELS["tied"])
    assert torch.equal(tied["embedding.table.weight"], free["embedding.table.weight"])


def test_the_callers_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    drawn(MODELS["causal"])
    assert torch.equal(torch.rand(3), expected)


class Parent(nn.Module):
    """Sets its child's values itself."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        nn.init.normal_(self.head.weight, std=0.001)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))


class Loaded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.head.load_state_dict({"weight": torch.eye(4), "bias": torch.ones(4)})


class Reaching(nn.Module):
    """Draws another module's values in its own reset_parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.register_buffer("zero", torch.zeros(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.zero)
        nn.init.zeros_(self.head.weight)


class Buffered(nn.Module):
    """Its reset_parameters forgets a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.arange(4))
        self.weight = nn.Parameter(torch.empty(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class Reading(nn.Module):
    """Reads a value while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, int(torch.full((1,), 5.0).sum().item()))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Parent, "head.weight is not what reset_parameters makes it"),
        (Bare, "the model has no reset_parameters"),
        (lambda: nn.Sequential(Bare()), "0 has no reset_parameters"),
        (Loaded, "head.weight is not what"),
        (Reaching, "reset_parameters of the model changes other modules too"),
        (Buffered, "steps is not what"),
        (Reading, "meta"),
    ],
)
def test_other_models_are_built_as_they_build_themselves(build: Any, reason: str) -> None:
    assert reason in build_on_meta(build)[1]
    made = drawn(build)
    torch.manual_seed(3)
    assert equal(made, build().state_dict())


def test_torchs_own_modules_are_drawn_too() -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(9, 4, padding_idx=0), nn.LSTM(4, 4), nn.Conv1d(4, 4, 3),
            nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Linear(4, 4),
        )  # fmt: skip

    assert build_on_meta(build)[1] == ""
    made = drawn(build)
    assert not made["0.weight"][0].any() and made["3.running_var"].eq(1).all()
    assert made["1.weight_ih_l0"].abs().max() <= 0.5
