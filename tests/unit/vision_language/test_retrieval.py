"""Image-text retrieval as a task: negatives of the whole batch, recall, baseline, ranks."""

from math import log
from pathlib import Path

import numpy as np
import pytest
import torch

from magneto.config import ConfigError
from magneto.data.table import whole_table
from magneto.training.task import figures_of
from magneto.vision.decoding import Pixels
from magneto.vision_language.config import ImageTextRetrieverConfig
from magneto.vision_language.figures import searches_figure
from magneto.vision_language.model import MOST_SCALE
from magneto.vision_language.retrieval import ImageTextRetrieval
from magneto.vision_language.samples import join_samples
from magneto.vision_language.tables import ImageRows, RowSplits
from tests.evaluating import measured
from tests.unit.vision_language.karpathy import write_karpathy
from tests.unit.vision_language.small_tasks import SIZES, retrieval_task


def gradients(task: ImageTextRetrieval, parts: int) -> tuple[float, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, value = task.build_model(), 0.0
    for piece in task.train_stream(7, 1).batch(0, parts, list(range(parts))):
        loss = task.loss(model, piece)
        loss.total.backward()
        value += loss.total.item()
    task.end_step(model, lambda tensor: tensor)
    return value, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_micro_batches_have_the_negatives_of_the_whole_batch(tmp_path: Path) -> None:
    task = retrieval_task(tmp_path)
    value, whole = gradients(task, 1)
    for parts in (2, 3):
        cut_value, cut = gradients(task, parts)
        assert cut_value == pytest.approx(value, rel=1e-5)
        torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-5)
    assert "scale.logarithm" in whole


def test_embeddings_are_of_images_and_texts_apart(tmp_path: Path) -> None:
    """Of length 1, and the same whatever else is in the batch."""
    task = retrieval_task(tmp_path)
    model = task.build_model().eval()
    batch = task.validation_batches()[0]
    images, texts, scale = model(batch["images"], batch["samples"])
    assert images.shape == (2, 16) and texts.shape == (4, 16)
    torch.testing.assert_close(texts.norm(dim=-1), torch.ones(4))
    assert scale.item() == pytest.approx(1 / 0.07)
    alone = join_samples(5, images=1)
    torch.testing.assert_close(model(batch["images"][1:], alone)[0], images[1:])
    with torch.no_grad():
        model.scale.logarithm.fill_(99.0)
    assert model.scale().item() == pytest.approx(MOST_SCALE)


def test_a_model_that_knows_finds_everything(tmp_path: Path) -> None:
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


def test_baseline_is_a_random_order(tmp_path: Path) -> None:
    found = retrieval_task(tmp_path).baseline()
    # Two images with two captions each.
    assert found["text_recall_at_1"] == found["image_recall_at_1"] == pytest.approx(0.5)
    assert found["text_recall_at_5"] == 1.0 and found["loss"] == pytest.approx(log(2))


def test_it_learns(tmp_path: Path) -> None:
    """Four images of noise, by heart."""
    task = retrieval_task(tmp_path)
    train = task.splits.train
    noise = np.random.default_rng(0).integers(0, 256, (len(train), 8, 8, 3), np.uint8)
    columns = {"image": Pixels(noise), "captions": train.values("captions")}
    rows = ImageRows(whole_table(columns))
    task._splits = RowSplits(rows, rows)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    stream = task.train_stream(4, 1).batches()
    for _ in range(120):
        task.loss(model, next(stream)[0]).total.backward()
        optimizer.step()
        optimizer.zero_grad()
    found, least = measured(task, model), task.baseline()
    assert found["text_recall_at_1"] >= 0.75 > 0.3 > least["text_recall_at_1"]
    assert found["loss"] < 0.8 * least["loss"]


def test_a_temperature_is_in_bounds() -> None:
    with pytest.raises(ConfigError, match="temperature must be in"):
        ImageTextRetrieverConfig(**SIZES, temperature=3.0)


def test_captions_that_find_their_images_are_counted(tmp_path: Path) -> None:
    write_karpathy(tmp_path, ("train", "train", "val", "val", "val"))
    task = retrieval_task(tmp_path)
    model = task.build_model().eval()
    (figure,) = figures_of(task, model)
    assert isinstance(figure.image, bytes) and figure.image.startswith(b"\x89PNG")
    rows, texts = task.splits.validation, torch.eye(3)
    found = searches_figure(rows, [0, 1, 2], texts, texts)
    assert "caption's own in 3 of 3" in found.caption
    turned = searches_figure(rows, [0, 1, 2], texts[[1, 0, 2]], texts)
    assert "caption's own in 1 of 3" in turned.caption
    for path in (tmp_path / "val2014").iterdir():
        path.write_bytes(b"no image")
    assert figures_of(task, model) == []
