"""Image captioning as a task: hidden words, CIDEr, baseline, the command that describes images."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.cli import main
from magneto.config import ConfigError
from magneto.progress import ProgressBars
from magneto.recipe import Recipe
from magneto.training.config import TrainingConfig
from magneto.training.loop import train
from magneto.training.task import figures_of
from magneto.vision_language.captioning import ImageCaptioning
from magneto.vision_language.config import CaptioningDataConfig, ImageCaptionerConfig
from magneto.vision_language.figures import readable_rows
from magneto.vision_language.tables import MISSING
from magneto.weights import open_tensors
from tests.evaluating import measured, reads_while_scoring
from tests.problems import listed
from tests.said import Said
from tests.vision_language.karpathy import write_karpathy
from tests.vision_language.nlvr2_folders import write_image

SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 32, "image_size": 8,
                         "patch_size": 4, "max_length": 24}  # fmt: skip


def task_of(folder: Path, model: dict[str, Any] | None = None, **data: Any) -> ImageCaptioning:
    if not (folder / "dataset_coco.json").exists():
        write_karpathy(folder)
    values = {"source": str(folder), "tokenizer": "bytes", **data}
    config = ImageCaptionerConfig(**{**SIZES, **(model or {})})
    return ImageCaptioning(config, CaptioningDataConfig(**values), 1)


def test_loss_is_a_sum_over_hidden_words(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = task.build_model()
    (batch,) = task.train_stream(4, 1).batch(0)
    loss, logits = task.loss(model, batch), model(batch["images"], batch["samples"], batch["words"])
    expected = F.cross_entropy(logits, batch["targets"], reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss.total, expected)
    plain = F.cross_entropy(logits, batch["targets"], reduction="sum")
    torch.testing.assert_close(loss.logs["nll"], plain.detach())
    assert loss.count == len(batch["words"]) and loss.logs["broken"] == 0
    halves = [task.loss(model, half) for half in task.train_stream(4, 1).batch(0, 2, [0, 1])]
    torch.testing.assert_close(halves[0].total + halves[1].total, loss.total)
    loss.total.backward()
    assert all(p.grad is not None for p in model.parameters())  # ranks wait for all


def test_targets_are_what_was_hidden(tmp_path: Path) -> None:
    """With them in their places, the texts are captions of their own images."""
    task = task_of(tmp_path)
    for batch in task.train_stream(4, 1).batch(0, 2, [0, 1]):
        samples = batch["samples"]
        tokens = samples.token_ids.clone()
        assert (tokens[batch["words"]] != batch["targets"]).any()
        tokens[batch["words"]] = batch["targets"]
        bounds = [*samples.text_starts.tolist(), len(tokens)]
        for image, start, stop in zip(batch["images"], bounds[:-1], bounds[1:], strict=True):
            text = task.tokenizer.decode(tokens[start:stop].tolist())
            number = round((image[0, 0, 0].item() + 1) * 127.5 / 20)
            assert text.startswith((f"image {number} of", f"brightness {20 * number}"[:22]))


def test_what_there_is_is_said_of_every_layout(tmp_path: Path) -> None:
    (tmp_path / "coco").mkdir()
    write_karpathy(tmp_path / "coco")
    (tmp_path / "coco" / "train2014" / "COCO_1.jpg").unlink()
    pairs = write_pairs(tmp_path / "pairs", 30)
    said = Said()
    for source in (tmp_path / "coco", pairs):
        task_of(tmp_path / "coco", source=str(source)).prepare(said)
    coco, rows = (line for line in said.lines if "to train on" in line)
    assert coco.endswith(f"coco: 3 images to train on, 2 to validate on (1 {MISSING})")
    counts = [int(word) for word in rows.replace(":", "").split() if word.isdigit()]
    assert sum(counts[:2]) == 30
    assert f"to validate on (1 records without an image left out [{tmp_path}" in rows


def write_pairs(folder: Path, count: int) -> Path:
    """Images with a caption each, and a line that is none."""
    for number in range(count):
        write_image(folder / f"{number}.png", number)
    rows = [{"image": f"{number}.png", "caption": f"image {number}"} for number in range(count)]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in [*rows, {"no": 1}]))
    return folder / "pairs.jsonl"


def test_metrics(tmp_path: Path) -> None:
    """A caption that is a reference scores most; one of a broken image is empty."""
    task = task_of(tmp_path)
    rows = task.splits.validation
    said = [[*text.encode(), task.tokenizer.end] for text in ("image 3 of val", "brightness 120")]
    written = torch.zeros(2, 20, dtype=torch.long)
    for row, tokens in enumerate(said):
        written[row, : len(tokens)] = torch.tensor(tokens)
    assert task.text(written[0].tolist()) == "image 3 of val" and len(rows) == 2
    sums = {"loss": 6.0, "count": 3, "broken": 0}
    whole = (torch.tensor([0, 1]), written, torch.tensor([False, False]))
    found = task.summarise(sums, [whole])
    assert found["loss"] == 2.0 and found["cider"] > 1 and set(found) == {"loss", "cider"}
    half = (*whole[:2], torch.tensor([False, True]))
    lost = task.summarise({**sums, "broken": 1}, [half])
    assert lost["broken"] == 1 and 0 < lost["cider"] < found["cider"]


def test_baseline_is_the_commonest_caption(tmp_path: Path) -> None:
    found = task_of(tmp_path).baseline()
    assert 2 < found["loss"] < np.log(260) and found["cider"] >= 0


def test_nothing_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(tmp_path, {"max_length": 6})
    assert reads_while_scoring(task, monkeypatch) == []


def test_broken_images_are_replaced_or_marked(tmp_path: Path) -> None:
    write_karpathy(tmp_path)
    (tmp_path / "train2014" / "COCO_1.jpg").write_bytes(b"no image")
    (tmp_path / "val2014" / "COCO_3.jpg").unlink()
    task = task_of(tmp_path, {"max_length": 6})
    (batch,) = task.train_stream(8, 1).batch(0)
    assert 0 < batch["broken"] < len(batch["words"]) and len(batch["images"]) == 8
    assert measured(task, task.build_model())["broken"] == 1
    task.problems.keep_in(tmp_path)
    names = ["COCO_1.jpg", "COCO_3.jpg"]
    assert [Path(name).name for _, name, _ in listed(tmp_path)] == names


def test_a_run_is_the_same_however_it_is_made_and_describes_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(out: str, resume: bool = False, **changes: Any) -> dict[str, torch.Tensor]:
        task = task_of(tmp_path / "data", {"max_length": 8})
        values = {"steps": 4, "batch_size": 4, "learning_rate": 1e-3, "device": "cpu",
                  "tensorboard": False, "schedule": "constant", "eps": 1e-3, **changes}  # fmt: skip
        config = TrainingConfig(**values)
        recipe = Recipe("t", "image-captioning", 1, task.model_config, task.data_config, config)
        train(task, config, tmp_path / out, seed=1, resume=resume, report=ProgressBars(quiet=True),
              keep_recipe=lambda: recipe.save(tmp_path / out / "recipe.yaml"))  # fmt: skip
        found = open_tensors(tmp_path / out / "final")
        return {name: tensor.read() for name, tensor in found.items()}

    (tmp_path / "data").mkdir()
    whole = run("whole", num_workers=1)
    run("resumed", steps=2, save_every=2)
    assert all(torch.equal(tensor, whole[n]) for n, tensor in run("resumed", True).items())
    for name, tensor in run("cut", gradient_accumulation_steps=2).items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-4, atol=1e-5)
    image = str(tmp_path / "data" / "val2014" / "COCO_3.jpg")
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "whole"), image, "--beams", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    folder = str(tmp_path / "data" / "val2014")
    assert main(["generate", str(tmp_path / "whole"), folder]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["generate", str(tmp_path / "whole")]) == 2
    assert "name an image" in capsys.readouterr().err


def test_impossible_values_are_named() -> None:
    with pytest.raises(ConfigError, match="mask_ratio must be above 0"):
        CaptioningDataConfig(mask_ratio=0.0)
    with pytest.raises(ConfigError, match="label_smoothing must be in"):
        ImageCaptionerConfig(**SIZES, label_smoothing=1.0)


def test_pictures_of_what_is_said(tmp_path: Path) -> None:
    """Images that can't be read are not drawn."""
    from PIL import Image

    write_karpathy(tmp_path, ("train", "train", "val", "val", "val"))
    task = task_of(tmp_path, {"max_length": 6})
    model = task.build_model().eval()
    assert sorted(readable_rows(task.splits.validation)) == [0, 1, 2]
    (figure,) = figures_of(task, model)
    picture = np.asarray(Image.open(io.BytesIO(figure.image)))  # type: ignore[arg-type]
    assert picture.std() > 10 and min(picture.shape[:2]) > 200
    for path in (tmp_path / "val2014").iterdir():
        path.write_bytes(b"no image")
    assert figures_of(task, model) == []


def test_drawn_scenes_have_captions_of_their_own() -> None:
    config = CaptioningDataConfig(source="builtin:shapes", tokenizer="bytes")
    splits = ImageCaptioning(ImageCaptionerConfig(**SIZES), config, 1).splits
    for rows in (splits.train, splits.validation):
        assert len({*rows.values("captions")}) == len(rows) > 100
