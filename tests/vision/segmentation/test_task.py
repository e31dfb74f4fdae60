"""Segmentation as a task: losses that add up, scores at the masks' size, errors for people."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.progress import ProgressBars
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.vision.config import SegmentationDataConfig
from magneto.vision.segmentation import Segmentation
from magneto.vision.segmenter import pixel_logits
from magneto.weights import open_tensors
from tests.evaluating import measured, reads_while_scoring
from tests.vision.segmentation.folders import write_pairs
from tests.vision.segmentation.small import small_config

SIZES = [(20, 30), (16, 16), (24, 22), (16, 40), (18, 18), (33, 17)]


def task_of(folder: Path, data: dict[str, Any] | None = None, **model: Any) -> Segmentation:
    if not (folder / "images").is_dir():
        write_pairs(folder, SIZES)
    source = {"source": str(folder), "validation_source": str(folder)}
    config = SegmentationDataConfig(**{**source, **(data or {})})
    return Segmentation(small_config(**{"head_dropout": 0.0, **model}), config, 1)


def run(task: Segmentation, out: Path, **changes: Any) -> dict[str, torch.Tensor]:
    values = {"steps": 3, "batch_size": 4, "learning_rate": 1e-3, "device": "cpu",
              "tensorboard": False, "log_every": 1,
              "schedule": "constant"}  # fmt: skip
    resume = changes.pop("resume", False)
    train(task, TrainingConfig(**{**values, **changes}), out, seed=1, resume=resume,
          report=ProgressBars(quiet=True))  # fmt: skip
    return {name: tensor.read() for name, tensor in open_tensors(out / "final").items()}


def test_loss_is_a_sum_over_labelled_pixels(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = task.build_model().train()
    (batch,) = task.train_stream(4, 1).batch(0)
    batch["masks"][0, :3] = 255
    loss = task.loss(model, batch)
    known = batch["masks"] != 255
    assert loss.count == known.sum() and 0 < loss.count < known.numel()
    answer = model(batch["images"])
    expected = 0.0
    for weight, logits in ((1.0, answer.main), (0.4, answer.auxiliary)):
        large = F.interpolate(logits, size=(16, 16), mode="bilinear", align_corners=False)
        each = F.cross_entropy(large, batch["masks"].long().clamp(max=4), reduction="none")
        expected = expected + weight * each[known].sum()
    torch.testing.assert_close(loss.total, expected)
    assert loss.logs["broken"] == 0
    one_broken = {**batch, "broken": torch.tensor([False, True, False, False])}
    assert task.loss(model, one_broken).logs["broken"] == known[1].sum()
    halves = [task.loss(model, {k: v[half] for k, v in batch.items()})
              for half in (slice(2), slice(2, 4))]  # fmt: skip
    torch.testing.assert_close(halves[0].total + halves[1].total, loss.total)


def test_scores_are_of_pixels_at_the_masks_size(tmp_path: Path) -> None:
    """By numpy, from the logits of each image alone, resized to its mask."""
    task = task_of(tmp_path, {"fit": (64, 32)})
    model = task.build_model().eval()
    matrix, loss = np.zeros((5, 5)), 0.0
    with torch.no_grad():
        for batch in task.validation_batches():
            for image, mask in zip(batch["images"], batch["masks"], strict=True):
                logits = next(pixel_logits(model, [image]))[None]
                large = F.interpolate(logits, mask.shape, mode="bilinear", align_corners=False)
                loss += F.cross_entropy(large, mask[None].long(), reduction="sum").item()
                np.add.at(matrix, (mask.numpy(), large[0].argmax(0).numpy()), 1)
    found = measured(task, model)
    assert matrix.sum() == sum(height * width for height, width in SIZES)
    assert found["pixel_accuracy"] == pytest.approx(matrix.trace() / matrix.sum())
    iou = [matrix[i, i] / (matrix[i].sum() + matrix[:, i].sum() - matrix[i, i]) for i in range(5)]
    assert found["mean_iou"] == pytest.approx(np.nanmean(iou))
    assert found["loss"] == pytest.approx(loss / matrix.sum(), rel=1e-4)
    assert [found[f"iou_{name}"] for name in range(5)] == pytest.approx(iou)


@pytest.mark.parametrize("inference", ["slide", "whole"])
def test_nothing_waits_for_the_device(
    inference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(tmp_path, inference=inference)
    assert reads_while_scoring(task, monkeypatch) == []


def test_baseline_is_the_commonest_class(tmp_path: Path) -> None:
    from PIL import Image

    write_pairs(tmp_path, [(4, 4)] * 2)
    mask = np.array([[0] * 4, [0] * 4, [0, 0, 1, 1], [2, 2, 255, 255]], np.uint8)
    for number in range(2):
        Image.fromarray(mask).save(tmp_path / "annotations" / f"{number}.png")
    found = task_of(tmp_path, {"classes": tuple("abcde")}).baseline()
    # 20, 4 and 4 of 28 pixels are a, b and c; frequencies are counted from one.
    assert found["pixel_accuracy"] == pytest.approx(20 / 28)
    assert found["mean_iou"] == pytest.approx((20 / 28 + 0 + 0) / 3)
    assert {"iou_a", "iou_b", "iou_c"} == {name for name in found if name.startswith("iou")}
    nats = -(20 * log(21 / 33) + 8 * log(5 / 33)) / 28
    assert found["loss"] == pytest.approx(nats)


def test_it_learns_stripes(tmp_path: Path) -> None:
    task = task_of(tmp_path, stride=16)
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    stream = task.train_stream(6, 1).batches()
    for _ in range(40):
        loss = task.loss(model, next(stream)[0])
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    assert measured(task, model)["mean_iou"] > 2 * task.baseline()["mean_iou"]


def test_batches_may_be_cut(tmp_path: Path) -> None:
    whole = run(task_of(tmp_path), tmp_path / "whole")
    cut = run(task_of(tmp_path), tmp_path / "cut", gradient_accumulation_steps=4)
    assert max((whole[name] - cut[name]).abs().max() for name in whole) < 1e-4


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    whole = run(task_of(tmp_path), tmp_path / "whole", steps=4)
    run(task_of(tmp_path), tmp_path / "resumed", steps=2)
    resumed = run(task_of(tmp_path), tmp_path / "resumed", steps=4, resume=True)
    assert not [name for name in whole if not torch.equal(whole[name], resumed[name])]


@pytest.mark.parametrize(
    ("data", "model", "words"),
    [
        ({}, {"classes": 4}, "can be read: .* has 4, there are 4 classes"),
        ({"classes": ("a", "b")}, {}, "has 2 classes, the model 5"),
        ({"source": "builtin:digits", "validation_source": None}, {}, "has no masks"),
    ],
)
def test_data_that_does_not_fit(
    data: dict[str, Any], model: dict[str, Any], words: str, tmp_path: Path
) -> None:
    from PIL import Image

    write_pairs(tmp_path, SIZES)
    for number in range(len(SIZES)):  # each has a 4
        mask = np.full(SIZES[number], 4, np.uint8)
        Image.fromarray(mask).save(tmp_path / "annotations" / f"{number}.png")
    with pytest.raises(ValueError, match=words):
        task_of(tmp_path, data, **model).prepare()


def test_a_run_keeps_its_classes(tmp_path: Path) -> None:
    task = task_of(tmp_path, {"classes": ("sky", "road", "tree", "car", "sign")})
    task.prepare()
    kept = task.save_assets(tmp_path)
    assert kept["data.classes"] == ["sky", "road", "tree", "car", "sign"]
    assert (tmp_path / "data.digest").read_text()


@pytest.mark.distributed
def test_ranks_agree(tmp_path: Path) -> None:
    """Two ranks give what one gives."""
    from tests.ranks import run_ranks
    from tests.vision.segmentation.ranks import run as run_alone

    folder, script = tmp_path / "data", "tests/vision/segmentation/ranks.py"
    write_pairs(folder, SIZES)
    run_alone(folder, tmp_path / "one")
    run_ranks(2, script, str(folder), str(tmp_path / "two"), "distributed=ddp")
    alone, ranks = (open_tensors(tmp_path / name / "final") for name in ("one", "two"))
    assert alone.keys() == ranks.keys()
    for name in alone:
        assert torch.allclose(alone[name].read(), ranks[name].read(), atol=1e-4), name
