"""First values depend on the seed and on names alone; operations and memory are known by shapes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto import Encoder, TransformerConfig
from magneto.lab.sweep import check_weights_first, prepare_task
from magneto.language.config import LanguageModelConfig
from magneto.language.models import LanguageModel
from magneto.recipe import load_recipe
from magneto.training.distributed import Piece, World, single_process
from magneto.training.model import (
    build_on_meta,
    check_memory,
    check_model_memory,
    count_flops,
    ctc_loss,
    draw_parameters,
    gigabytes,
    initial_model,
    memory_of,
    peak_memory,
)
from magneto.training.task import Loss, place_companion
from tests.unit.training.toy import Moving, Toy, ToyData, config

CPU = torch.device("cpu")
ALONE = single_process(CPU)
SIZES: dict[str, Any] = {"width": 32, "heads": 4, "ffn_width": 48}
TEXT: dict[str, Any] = {**SIZES, "layers": 2, "vocab_size": 50}


class Built(Toy):
    """A task with any model."""

    def __init__(self, build: Any) -> None:
        super().__init__()
        self.build_model = build  # type: ignore[method-assign]


def drawn(build: Any, seed: int = 3) -> dict[str, Tensor]:
    return initial_model(Built(build), seed, ALONE).state_dict()


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_values_depend_on_seed_and_name_alone() -> None:
    config = LanguageModelConfig(**TEXT, placement="pre")  # whose gain depends on no depth
    short, long = (
        drawn(lambda layers=layers: LanguageModel(replace(config, layers=layers)))
        for layers in (2, 3)
    )
    assert all(torch.equal(short[name], long[name]) for name in short)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert equal(short, drawn(lambda: LanguageModel(config)))
    assert torch.equal(torch.get_rng_state(), before), "the caller's is left alone"
    other = drawn(lambda: LanguageModel(config), seed=4)
    assert not torch.equal(other["embedding.table.weight"], short["embedding.table.weight"])
    first, second = (short[f"decoder.layers.{i}.feed_forward.mlp.fc1.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


def test_a_rank_begins_with_its_own_rows_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(tensor: Tensor) -> Piece:
        return Piece(tensor.detach()[2:5], 2, tuple(tensor.shape), sharded=True)

    whole, part = nn.Linear(4, 6), nn.Linear(4, 6)
    draw_parameters(whole, 3)
    monkeypatch.setattr("magneto.training.model.piece_of", rows)
    draw_parameters(part, 3)
    for found, expected in zip(part.parameters(), whole.parameters(), strict=True):
        assert torch.equal(found[2:5], expected[2:5])


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


class Reading(nn.Module):
    """Reads a value while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, int(torch.full((1,), 5.0).sum().item()))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Parent, "reset_parameters does not reproduce the initial values of head.weight"),
        (Bare, "the model has no reset_parameters"),
        (Reaching, "reset_parameters of the model changes other modules too"),
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

    def tied() -> nn.Module:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
        model[1].weight = model[0].weight
        return model

    assert build_on_meta(build)[1] == build_on_meta(tied)[1] == ""
    made = drawn(build)
    assert not made["0.weight"][0].any() and made["3.running_var"].eq(1).all()
    assert made["1.weight_ih_l0"].abs().max() <= 0.5


def test_flops_of_a_step_by_hand() -> None:
    """2 per weight and row forward, 4 backward; the first layer's input needs no gradient."""
    task = Toy()
    batch = task.train_stream(8, 0).batch(0)[0]
    products = [4 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 16, 16 * 1]
    assert count_flops(task, batch) == (8 * (6 * sum(products) - 2 * 4 * 16), 8)


def test_flops_are_counted_without_a_run() -> None:
    """Attention's own products are counted, and a model of 3 TB takes no memory."""
    width, length = 512 * 256, 64
    config = TransformerConfig(width=width, layers=4, heads=256, ffn_width=4 * width)

    class Stack(Toy):
        def build_model(self) -> torch.nn.Module:
            return Encoder(config)

        def loss(self, model: torch.nn.Module, batch: Any) -> Loss:
            return Loss(model(batch[0]).sum(), torch.ones(()))

    flops, units = count_flops(Stack(), (torch.empty(1, 1, 1).expand(1, length, width),))
    weights, attention = 12 * width**2, 2 * length * width
    assert flops == 4 * 6 * length * (weights + attention) and units == 1


def test_the_loss_of_ctc_has_its_shapes_without_values() -> None:
    logits, labels = torch.randn(7, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 4))
    lengths = [[7, 6], [4, 1]]
    expected = torch.ops.aten._ctc_loss(logits, labels, *lengths)
    found = ctc_loss(logits, labels, *lengths, 0, False)
    assert [x.shape for x in found] == [x.shape for x in expected]


def test_a_companion_is_counted_and_stays_where_it_is_and_a_loss_that_reads_values_is_not() -> None:
    task = Moving()
    place_companion(task, CPU)
    batch = task.train_stream(8, 0).batch(0)[0]
    counted, units = count_flops(task, batch)
    assert counted == count_flops(Toy(), batch)[0] + 2 * 4 * units
    assert torch.equal(task.teacher.weight, torch.full((1, 4), 0.5))
    assert math.isnan(count_flops(Toy(ToyData(explode_at=0.1)), batch)[0])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 GB."""
    monkeypatch.setattr("magneto.training.model.memory_of", lambda device: 64_000_000_000)


def test_weights_that_can_not_fit_are_refused_before_data_is_read(
    machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, changes, message in (
        ("image-classification", {"model.classes": 10**9}, "head.weight, 1000000000"),
        ("image-tokenizer", {"model.codes": 10**9}, "tokenizer.codebook.seen"),
    ):
        recipe = load_recipe(f"{name}/tiny", changes)
        monkeypatch.setattr(type(recipe.build_task()), "prepare", pytest.fail)
        with pytest.raises(ValueError, match=f"largest tensor is {message}") as caught:
            check_weights_first(recipe)
        assert " GB" in str(caught.value) and "the device (cpu) has 64 GB" in str(caught.value)


def test_weights_that_fit_are_not_refused(machine: None) -> None:
    """Nor is a recipe for several processes, which a probe looks at in one."""
    for name in ("causal-lm/24l", "transducer/librispeech-36l", "text-classification/sst2"):
        check_weights_first(load_recipe(name, {"training.distributed": "fsdp"}))


def test_a_batch_that_can_not_fit_is_refused(machine: None) -> None:
    sizes = {"model.image_size": 512, "model.patch_size": 16, "model.max_length": 1025}
    recipe = load_recipe("image-classification/tiny", {**sizes, "training.batch_size": 10**5})
    task = recipe.build_task()
    task.prepare()
    with pytest.raises(ValueError, match=r"this machine has 64 GB.*Lower the batch size or"):
        check_memory(task, recipe.training, ALONE, 1)
    check_memory(task, recipe.training, World(0, 9, CPU, "ddp"), 1)  # each rank has a ninth
    with pytest.raises(ValueError, match="Lower the batch size"):
        prepare_task(recipe)  # before a comparison starts its runs


def test_a_model_is_divided_over_the_ranks_that_share_it(machine: None) -> None:
    """5e9 weights need 80 GB with gradients and AdamW's moments: two ranks of 64 GB have room."""

    def check(billions: int, world: World, **changes: Any) -> None:
        with torch.device("meta"):
            model = nn.Linear(10**5, billions * 10**4, bias=False)
        check_model_memory(model, config(**changes), world)

    alone, shared = World(0, 4, CPU, "ddp"), World(0, 4, CPU, "hybrid", 2)
    check(5, shared)
    check(5, alone, optimizer="sgd")
    for billions, changes in ((5, {}), (6, {"optimizer": "sgd", "ema_decay": 0.5})):
        with pytest.raises(ValueError, match="Lower the sizes"):
            check(billions, alone, **changes)


def test_what_fits_is_not_refused(machine: None, tmp_path: Path) -> None:
    """Texts are shorter than the longest that there may be."""
    table = tmp_path / "rows.csv"
    table.write_text("text,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(40)))
    changes = {"data.max_length": 8192, "model.max_length": 8192, "data.tokenizer": "bytes",
               "data.source": str(table)}  # fmt: skip
    recipe = load_recipe("text-classification/tiny", {"training.batch_size": 3 * 4096, **changes})
    task = recipe.build_task()
    task.prepare()
    check_memory(task, recipe.training, ALONE, 1)


def test_peak_memory_is_in_bytes() -> None:
    assert 10**8 < peak_memory(CPU) < (memory_of(CPU) or 10**12) < 10**14
    assert (gigabytes(1.5e9), gigabytes(2.3456e12)) == ("1.5 GB", "2,346 GB")
