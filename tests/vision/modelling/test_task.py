"""Masked image modelling learns, whatever a batch is cut into, from a tokenizer that stays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.recipe import load_recipe
from magneto.runs import load_run
from magneto.training.task import figures_of, place_companion
from magneto.vision.masked_modelling import ImageModelling
from magneto.weights import open_tensors
from tests.evaluating import measured, reads_while_scoring
from tests.ranks import run_ranks
from tests.vision.modelling.trained import SMALL, train_model
from tests.vision.tokenizer.trained import train_tokenizer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def digits() -> None:
    pytest.importorskip("sklearn")


def build(**changes: Any) -> ImageModelling:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    task = load_recipe("image-modelling/tiny", {**SMALL, **given}).build_task()
    task.prepare()
    place_companion(task, CPU)
    assert isinstance(task, ImageModelling)
    return task


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.read() for name, tensor in open_tensors(directory).items()}


def test_it_learns(tmp_path: Path) -> None:
    changes = {"training__steps": 60, "model__width": 32, "training__learning_rate": 3e-3}
    result = train_model(tmp_path, **changes)
    baseline = build().baseline()
    assert result.metrics["loss"] < baseline["loss"] - 0.3
    assert result.metrics["masked_accuracy"] > baseline["masked_accuracy"]


def test_micro_batches_and_resuming_change_nothing(tmp_path: Path) -> None:
    train_model(tmp_path / "whole")
    train_model(tmp_path / "cut", training__gradient_accumulation_steps=4)
    train_model(tmp_path / "resumed", training__steps=5, training__save_every=5)
    train_model(tmp_path / "resumed", training__save_every=5, resume=True)
    runs = {name: tensors(tmp_path / name / "final") for name in ("whole", "cut", "resumed")}
    for name, tensor in runs["whole"].items():
        assert torch.allclose(runs["cut"][name], tensor, atol=1e-5), name
        assert torch.equal(runs["resumed"][name], tensor), name


@pytest.mark.distributed
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_agree(tmp_path: Path, strategy: str) -> None:
    train_model(tmp_path / "one")
    script = "tests/vision/modelling/trained.py"
    run_ranks(2, script, str(tmp_path / "two"), f"training__distributed={strategy}")
    one, two = (tensors(tmp_path / name / "final") for name in ("one", "two"))
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, atol=1e-5), name


def test_what_is_hidden_is_a_function_of_seed_epoch_and_image() -> None:
    def some(parts: int, workers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = build().train_stream(16, 3).batch(0, parts, workers)
        return tuple(torch.cat([piece[key] for piece in pieces]) for key in ("images", "hidden"))  # type: ignore[return-value]

    images, hidden = some(1, [0])
    again, cut = some(4, [0, 1, 2, 3])
    assert torch.equal(images, again) and torch.equal(hidden, cut)
    assert hidden.shape == (16, 6) and len({tuple(row) for row in hidden.tolist()}) > 8
    other = build().train_stream(16, 4).batch(0)[0]
    assert not torch.equal(hidden, other["hidden"])
    # In the next epoch the same image has another mask.
    task = build()
    count = len(task.splits.train)
    stream = task.train_stream(count, 3).batches()
    epochs = [next(stream)[0] for _ in range(2)]
    keys = [
        {
            image.tobytes(): tuple(row)
            for image, row in zip(e["images"].numpy(), e["hidden"].tolist(), strict=True)
        }
        for e in epochs
    ]
    assert keys[0].keys() == keys[1].keys()
    assert np.mean([keys[0][image] != keys[1][image] for image in keys[0]]) > 0.9


def test_validation_always_asks_for_the_same() -> None:
    first, second = (build(seed=1), build(seed=1))
    for one, two in zip(first.validation_batches(), second.validation_batches(), strict=True):
        assert torch.equal(one["hidden"], two["hidden"])
        assert torch.equal(one["images"], two["images"])
    limited = first.validation_batches()[0]
    assert len(limited["images"]) == 64 and limited["hidden"].shape == (64, 6)


def test_the_loss_is_of_the_tokenizers_codes_in_hidden_places() -> None:
    task = build()
    torch.manual_seed(0)
    model = task.build_model()
    batch = task.train_stream(8, 1).batch(0)[0]
    loss = task.loss(model, batch)
    codes = task.targets(batch["images"]).gather(1, batch["hidden"])
    logits = model(batch["images"], batch["hidden"])
    expected = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="sum")
    assert torch.allclose(loss.total, expected, rtol=1e-5) and loss.count == 48
    found = task.score(model, {**batch, "broken": torch.arange(8) > 3}).sums
    some = F.cross_entropy(logits[:4].flatten(0, 1), codes[:4].flatten(), reduction="sum")
    assert torch.allclose(found["loss"], some, rtol=1e-5) and found["count"] == 24


def test_validation_images_of_which_none_can_be_read_are_one_line() -> None:
    with pytest.raises(ValueError, match="no validation image can be read"):
        build().summarise({"loss": 0.0, "right": 0.0, "count": 0.0}, ())


def test_a_second_guess_is_added_and_shown() -> None:
    task = build(model__aggregation_layer=1)
    torch.manual_seed(0)
    model = task.build_model()
    batch = task.train_stream(8, 1).batch(0)[0]
    loss = task.loss(model, batch)
    guesses = model(batch["images"], batch["hidden"], task._wanted(batch))
    assert torch.allclose(loss.total, guesses.loss.total + guesses.others[0].total)
    assert torch.allclose(loss.logs["guess"], guesses.loss.total)


def test_scoring_waits_for_nothing(monkeypatch) -> None:
    assert reads_while_scoring(build(), monkeypatch) == []


def test_the_baseline_answers_with_code_frequencies() -> None:
    task = build()
    train = torch.cat([b["images"] for b in list(task.fixed_batches(task.splits.train))[:16]])
    known = task.targets(train).flatten().bincount(minlength=16).double() + 1
    held = torch.cat([
        task.targets(b["images"]).gather(1, b["hidden"]).flatten()
        for b in task.validation_batches()
    ])  # fmt: skip
    found = task.baseline()
    assert found["loss"] == pytest.approx(
        -(known / known.sum()).log()[held].mean().item(), rel=1e-4
    )
    assert found["masked_accuracy"] == pytest.approx(
        (held == known.argmax()).double().mean().item()
    )


def test_another_tokenizer_is_not_resumed_with(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        train_tokenizer(tmp_path / name, training__steps=1, seed=seed)
    chosen = {"data__image_tokenizer": str(tmp_path / "one"), "model__codes": None}
    train_model(tmp_path / "run", **chosen, training__steps=2, training__save_every=2)
    chosen["data__image_tokenizer"] = str(tmp_path / "two")
    with pytest.raises(ValueError, match=r"data.digest|trained .* on other data"):
        train_model(tmp_path / "run", **chosen, resume=True)
    # It may have moved, though.
    (tmp_path / "one").rename(tmp_path / "moved")
    chosen["data__image_tokenizer"] = str(tmp_path / "moved")
    assert train_model(tmp_path / "run", **chosen, resume=True).step == 8
    # Without a tokenizer the model is there, with the head that it has.
    (tmp_path / "moved").rename(tmp_path / "gone")
    opened = load_run(tmp_path / "run", "auto", {})
    assert opened.model.head.out_features == 16  # type: ignore[union-attr]
    names = open_tensors(tmp_path / "run" / "final")
    assert not any("codebook" in name or "tokenizer" in name for name in names)


def test_what_does_not_fit_is_said() -> None:
    for change, said in (
        ({"model.codes": None}, "set model.codes"),
        ({"data.augmentation.erasing": 0.5}, "erasing must be 0"),
        ({"data.image_tokenizer": "nowhere"}, "no run in nowhere"),
    ):
        task = load_recipe("image-modelling/tiny", {**SMALL, **change}).build_task()
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            task.prepare()
    for change, said in (
        ({"data.mask_ratio": 1.0}, r"mask_ratio must be in \(0, 1\)"),
        ({"data.image_tokenizer": ""}, "must be a run's directory or builtin:patches"),
    ):
        with pytest.raises(ValueError, match=said):
            load_recipe("image-modelling/tiny", {**SMALL, **change})


def test_figures_of_a_model() -> None:
    task = build()
    torch.manual_seed(0)
    figures = figures_of(task, task.build_model().eval())
    assert [figure.name for figure in figures] == ["guesses", "attention"]
    assert all(bytes(figure.image[:4]) == b"\x89PNG" for figure in figures)  # type: ignore[arg-type]


def test_metrics_of_an_untrained_model() -> None:
    task = build()
    torch.manual_seed(0)
    found = measured(task, task.build_model().eval())
    assert found["loss"] == pytest.approx(np.log(16), abs=0.2)
