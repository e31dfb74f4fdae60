"""Image captioning as a task: hidden words, CIDEr, baseline, the command that describes images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from magneto.cli import main
from magneto.config import ConfigError
from magneto.vision_language.captioning import ImageCaptioning
from magneto.vision_language.config import CaptioningDataConfig, ImageCaptionerConfig
from magneto.vision_language.tables import MISSING
from tests.said import Said
from tests.unit.vision_language.karpathy import write_karpathy
from tests.unit.vision_language.nlvr2_folders import write_image
from tests.unit.vision_language.small_tasks import SIZES, caption_task, run


def test_loss_is_a_sum_over_hidden_words(tmp_path: Path) -> None:
    task = caption_task(tmp_path)
    model = task.build_model()
    (batch,) = task.train_stream(4, 1).batch(0)
    loss, logits = task.loss(model, batch), model(batch["images"], batch["samples"], batch["words"])
    expected = F.cross_entropy(logits, batch["targets"], reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss.total, expected)
    plain = F.cross_entropy(logits, batch["targets"], reduction="sum")
    torch.testing.assert_close(loss.logs["nll"], plain.detach())
    assert loss.count == len(batch["words"]) and loss.logs["broken"] == 0


def test_targets_are_what_was_hidden(tmp_path: Path) -> None:
    """With them in their places, the texts are captions of their own images."""
    task = caption_task(tmp_path)
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
        caption_task(tmp_path / "coco", source=str(source)).prepare(said)
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
    task = caption_task(tmp_path)
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
    found = caption_task(tmp_path).baseline()
    assert 2 < found["loss"] < np.log(260) and found["cider"] >= 0


def test_impossible_values_are_named() -> None:
    with pytest.raises(ConfigError, match="mask_ratio must be above 0"):
        CaptioningDataConfig(mask_ratio=0.0)
    with pytest.raises(ConfigError, match="label_smoothing must be in"):
        ImageCaptionerConfig(**SIZES, label_smoothing=1.0)


def test_drawn_scenes_have_captions_of_their_own() -> None:
    config = CaptioningDataConfig(source="builtin:shapes", tokenizer="bytes")
    splits = ImageCaptioning(ImageCaptionerConfig(**SIZES), config, 1).splits
    for rows in (splits.train, splits.validation):
        assert len({*rows.values("captions")}) == len(rows) > 100


def test_generate_describes_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    made = tmp_path / "run"
    run(caption_task(tmp_path / "data", {"max_length": 8}), made, steps=1)
    folder = tmp_path / "data" / "val2014"
    for words, lines in (([folder / "COCO_3.jpg", "--beams", "2"], 1), ([folder], 2)):
        capsys.readouterr()
        assert main(["generate", str(made), *map(str, words)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == lines
    assert main(["generate", str(made)]) == 2
    assert "name an image" in capsys.readouterr().err
