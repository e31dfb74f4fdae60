"""Masked image models: what is hidden is not seen; they learn codes in hidden places."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.vision import figures as drawing
from magneto.vision.config import ImageModelConfig
from magneto.vision.masked_modelling import MaskedImageModel, figures
from tests.unit.vision.small import PATCHES, built, small_task

OPTIONS = {
    "no class token": {"class_token": "none"},
    "aggregation": {"aggregation_layer": 2},
    "relative bias and LayerScale": {
        "positions": "none", "grid_positions": "shared_relative_bias", "layer_scale": 0.1,
        "aggregation_layer": 1,
    },
}  # fmt: skip


def model_of(**changes: Any) -> MaskedImageModel:
    torch.manual_seed(0)
    model = MaskedImageModel(ImageModelConfig(**{**PATCHES, **changes})).eval()
    torch.nn.init.normal_(model.head.bias)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(3, 1, 8, 8, generator=draw)
    hidden = torch.stack([torch.randperm(16, generator=draw)[:6].sort().values for _ in range(3)])
    return images, hidden, torch.randint(12, (3, 6), generator=draw)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_hidden_is_not_seen_and_asked_for(options: dict[str, Any]) -> None:
    model, (images, hidden, codes) = model_of(**options), batch()
    other = images.clone()
    # Patch 16 rows of four: paint each hidden one.
    for row, places in zip(other, hidden.tolist(), strict=True):
        for place in places:
            y, x = 2 * (place // 4), 2 * (place % 4)
            row[:, y : y + 2, x : x + 2] += 5
    before, after = model.features(images, hidden), model.features(other, hidden)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    logits, losses = model(images, hidden), model(images, hidden, codes)
    assert not torch.allclose(model(other + 1, hidden), logits) and logits.shape == (3, 6, 12)
    expected = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="sum")
    assert torch.allclose(losses[0].total, expected, atol=1e-4) and losses[0].count == 18
    assert len(losses) == 1 + ("aggregation_layer" in options)


def test_a_second_guess_sees_the_top_through_the_class_token_alone() -> None:
    model, (images, hidden, _) = model_of(aggregation_layer=2), batch()
    x = model.class_token(model.hide(model.embedding(images), hidden))
    middle, last = model.encoder.features(x, (1, 2))
    again = model.aggregation(middle, last)
    assert len(model.aggregation.encoder.layers) == model.config.aggregation_depth == 2
    other = last.clone()
    other[:, 1:] += 1
    assert torch.equal(model.aggregation(middle, other), again)
    other[:, 0] += torch.arange(16)
    assert not torch.allclose(model.aggregation(middle, other), again)
    index = (hidden + 1)[..., None].expand(-1, -1, 16)
    assert torch.equal(model.features(images, hidden)[1], again.gather(1, index))


def test_the_loss_is_of_the_tokenizers_codes_in_hidden_places() -> None:
    task = small_task("image-modelling")
    model = built(task)
    batch = task.train_stream(8, 1).batch(0)[0]
    loss = task.loss(model, batch)
    codes = task.targets(batch["images"]).gather(1, batch["hidden"])
    logits = model(batch["images"], batch["hidden"])
    expected = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="sum")
    assert torch.allclose(loss.total, expected, rtol=1e-5) and loss.count == 48
    found = task.score(model, {**batch, "broken": torch.arange(8) > 3}).sums
    some = F.cross_entropy(logits[:4].flatten(0, 1), codes[:4].flatten(), reduction="sum")
    assert torch.allclose(found["loss"], some, rtol=1e-5) and found["count"] == 24
    # A second guess is added, and the first is logged by itself.
    again = small_task("image-modelling", model__aggregation_layer=1)
    model = built(again)
    found, loss = model(batch["images"], batch["hidden"], codes), again.loss(model, batch)
    assert torch.allclose(loss.total, found[0].total + found[1].total)
    assert torch.allclose(loss.logs["guess"], found[0].total)


def test_the_baseline_answers_with_code_frequencies() -> None:
    task = small_task("image-modelling")
    train = torch.cat([b["images"] for b in list(task.fixed_batches(task.splits.train))[:16]])
    known = task.targets(train).flatten().bincount(minlength=16).double() + 1
    held = torch.cat([
        task.targets(b["images"]).gather(1, b["hidden"]).flatten()
        for b in task.validation_batches()
    ])  # fmt: skip
    rows = task.validation_batches()[0]["hidden"].tolist()
    assert len({tuple(row) for row in rows}) > 1
    other = small_task("image-modelling", seed=2)  # which hides the same patches
    assert other.validation_batches()[0]["hidden"].tolist() == rows
    found = task.baseline()
    assert found["loss"] == pytest.approx(
        -(known / known.sum()).log()[held].mean().item(), rel=1e-4
    )
    assert found["masked_accuracy"] == pytest.approx(
        (held == known.argmax()).double().mean().item()
    )


def test_figures_and_codes_are_of_pixels_whatever_the_model_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[str, Any] = {}
    for name in ("guesses", "attention"):
        monkeypatch.setattr(
            drawing, f"{name}_figure", lambda *given, name=name: drawn.setdefault(name, given)
        )
    task = small_task("image-modelling", data__normalisation="imagenet")
    model = built(task).eval()
    figures(task, model)
    seen, _, _, guesses, *_ = drawn["guesses"]
    plain = torch.cat([b["images"] for b in task.fixed_batches(task.splits.validation, "half")])
    torch.testing.assert_close(seen, plain, atol=1e-5, rtol=0)
    known = task.fixed_batches(task.splits.train, "half")[0]["images"]
    assert torch.equal(task.plain_batches()[0]["images"], known) and known.max() == 1
    torch.testing.assert_close(drawn["attention"][2], plain[:8], atol=1e-5, rtol=0)
    first = task.validation_batches()[0]
    assert torch.equal(guesses, model(first["images"][:8], first["hidden"][:8]).argmax(-1))


def test_an_image_has_another_mask_in_the_next_epoch() -> None:
    task = small_task("image-modelling")
    task.splits = replace(task.splits, train=task.splits.train.take(np.arange(100)))
    stream = task.train_stream(100, 3).batches()
    first, second = (
        {
            image.tobytes(): tuple(row)
            for image, row in zip(batch["images"].numpy(), batch["hidden"].tolist(), strict=True)
        }
        for batch in (next(stream)[0], next(stream)[0])
    )
    assert first.keys() == second.keys()
    assert np.mean([first[image] != second[image] for image in first]) > 0.9
