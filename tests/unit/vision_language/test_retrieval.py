"""Image-text retrieval: negatives of the whole batch, recall against sorting, baseline."""

from collections import Counter
from itertools import permutations
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.data.table import table_of_columns
from magneto.recipe import load_recipe
from magneto.vision.decoding import Pixels
from magneto.vision.images import ImageSplit, ImageSplits
from magneto.vision_language import finetuning, retrieval
from magneto.vision_language.finetuning import distinct
from magneto.vision_language.model import contrastive_losses
from magneto.vision_language.retrieval import RANKS, chance, piece_loss, recalls
from tests.evaluating import measured, taught
from tests.unit.vision_language.small_tasks import retrieval_task


def vectors(count: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 8, generator=random, dtype=torch.float64), dim=-1)


def test_pieces_add_up_to_the_gradient_of_the_whole() -> None:
    leaves = [vectors(5, 0).requires_grad_(), vectors(5, 1).requires_grad_(),
              torch.tensor(9.0, dtype=torch.float64, requires_grad=True)]  # fmt: skip
    whole = contrastive_losses(*leaves).sum()
    expected = torch.autograd.grad(whole, leaves)
    everything = leaves[0].detach(), leaves[1].detach()
    value, start, found = 0.0, 0, [torch.zeros_like(leaf) for leaf in leaves]
    for count in (1, 1, 3):
        own = slice(start, start + count)
        loss = piece_loss(leaves[0][own], leaves[1][own], leaves[2], everything, start)
        for total, part in zip(found, torch.autograd.grad(loss, leaves), strict=True):
            total += part
        value, start = value + loss.item(), start + count
    assert value == pytest.approx(whole.item())
    torch.testing.assert_close(found, list(expected))


def test_a_model_that_knows_finds_everything(tmp_path: Path, monkeypatch) -> None:
    """Each image and each of its captions at its own place; then all at one."""
    task = retrieval_task(tmp_path)
    batches = list(task.validation_batches())
    rows, owners = (torch.cat([batch[key] for batch in batches]) for key in ("rows", "owners"))
    eye, broken = torch.eye(2), torch.zeros(2, dtype=torch.bool)
    sums = {"loss": 2.0, "count": 2, "broken": 0}
    found = task.summarise(sums, [(eye[rows], eye[owners], rows, owners, broken)])
    assert found.pop("loss") == 1.0 and set(found.values()) == {1.0} and len(found) == 7
    flat = torch.ones(2, 1), torch.ones(4, 1)
    found = task.summarise({**sums, "broken": 1}, [(*flat, rows, owners, broken)])
    assert found["text_recall_at_1"] == 0.0 and found["broken"] == 1
    # A random order, of two images with two captions each.
    least = task.baseline()
    assert least["text_recall_at_1"] == least["image_recall_at_1"] == pytest.approx(0.5)
    assert least["text_recall_at_5"] == 1.0 and least["loss"] == pytest.approx(log(2))
    assert np.array_equal(distinct(task.splits.train.take(np.array([1, 0, 1]))).table.rows, [1, 0])
    monkeypatch.setattr(finetuning, "EVALUATION_BATCH", 1)
    assert retrieval_task(tmp_path).baseline()["loss"] == 0.0


def test_a_comparison_asks_for_the_baseline_of_an_unprepared_task() -> None:
    task = load_recipe("image-text-retrieval/tiny").build_task()
    assert task.model_config.image_size is None
    assert task.baseline(1)["loss"] > 0


def test_it_learns(tmp_path: Path) -> None:
    """Four images of noise, by heart."""
    task = retrieval_task(tmp_path)
    train = task.splits.train
    noise = np.random.default_rng(0).integers(0, 256, (len(train), 8, 8, 3), np.uint8)
    columns = {"image": Pixels(noise), "captions": train.values("captions")}
    rows = ImageSplit(table_of_columns(columns))
    task.splits = ImageSplits(rows, rows)
    found, least = measured(task, taught(task, 90, 4, 1e-3)), task.baseline()
    assert found["text_recall_at_1"] >= 0.75 > 0.3 > least["text_recall_at_1"]
    assert found["loss"] < 0.8 * least["loss"]


def by_sorting(similarity: torch.Tensor, right: torch.Tensor, rank: int) -> float:
    hits = 0
    for row, known in zip(similarity, right, strict=True):
        hits += bool(known[row.argsort(descending=True)[:rank]].any())
    return hits / len(right)


def test_recall_against_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "PIECE", 7)
    torch.manual_seed(0)
    images, texts = F.normalize(torch.randn(20, 4)), F.normalize(torch.randn(50, 4))
    owners = torch.cat((torch.arange(20), torch.randint(20, (30,))))
    found = recalls(images, texts, owners, torch.zeros(20, dtype=torch.bool))
    right = owners[:, None] == torch.arange(20)
    for rank in RANKS:
        text = by_sorting(images @ texts.T, right.T, rank)
        image = by_sorting(texts @ images.T, right, rank)
        assert found[f"text_recall_at_{rank}"] == pytest.approx(text)
        assert found[f"image_recall_at_{rank}"] == pytest.approx(image)
    kinds = [found[f"{kind}_recall_at_{rank}"] for kind in ("text", "image") for rank in RANKS]
    assert found["mean_recall"] == pytest.approx(sum(kinds) / 6)


def test_what_is_alike_no_number_or_broken_is_not_found() -> None:
    none, owners = torch.zeros(11, dtype=torch.bool), torch.arange(11)
    for nothing in (torch.ones(11, 1), torch.full((11, 4), torch.nan)):
        assert set(recalls(nothing, nothing, owners, none).values()) == {0.0}
    # One image of eight: it finds nothing, and stands before what other captions ask for.
    images, owners, none = torch.eye(8), owners[:8], none[:8]
    images[3] = torch.nan
    found = recalls(images, torch.eye(8), owners, none)
    assert found["text_recall_at_1"] == found["text_recall_at_10"] == 7 / 8
    assert found["image_recall_at_1"] == 0 and found["image_recall_at_5"] == 7 / 8
    # Of two captions of each image one is a number: it is found, behind the others' seven.
    texts = torch.cat((torch.eye(8), torch.full((8, 8), torch.inf)))
    found = recalls(torch.eye(8), texts, owners.repeat(2), none)
    assert found["text_recall_at_5"] == 0 and found["text_recall_at_10"] == 1
    assert found["image_recall_at_1"] == 0.5
    broken = torch.tensor([True, False, False, False])
    found = recalls(torch.eye(4), torch.eye(4), torch.arange(4), broken)
    assert found["text_recall_at_1"] == found["image_recall_at_10"] == 0.75


def test_chance_is_the_mean_over_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "RANKS", (1, 2))
    right = Counter({1: 3, 2: 1})
    for rank, found in chance(5, right).items():
        hits = sum(
            how_many * any(place < answers for place in order[:rank])
            for order in permutations(range(5))
            for answers, how_many in right.items()
        )
        assert found == pytest.approx(hits / 120 / 4)
    assert chance(1, Counter({1: 1})) == {1: 1.0, 2: 1.0}


@torch.no_grad()
def test_embeddings_are_in_the_order_of_the_inputs(tmp_path: Path) -> None:
    task = retrieval_task(tmp_path)
    model, picture = task.build_model().eval(), task.splits.train.open(0)
    inputs = ["a dog", "two cats", picture]
    alone = [task.predict(model, [each])[0] for each in inputs]
    torch.testing.assert_close(task.predict(model, inputs), alone)
    model.scale.logarithm.fill_(9.0)
    task.end_step(model, lambda tensor: tensor)
    assert model.scale.logarithm.item() == pytest.approx(log(100))
