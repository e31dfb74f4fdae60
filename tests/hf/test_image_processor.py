"""What an exported image classifier reads and says, in a new process with transformers alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from magneto.cli import main  # noqa: E402
from magneto.runs import load_run  # noqa: E402
from magneto.vision.decoding import EncodedPicture  # noqa: E402
from magneto.vision.transforms import validation_transform  # noqa: E402
from tests.hf.conftest import Newcomer  # noqa: E402

COLOURS = {"apple": "red", "grass": "lime", "sky": "blue"}
SMALL = """--model.width 16 --model.layers 2 --model.heads 2 --model.ffn_width 24
--model.max_length 5 --model.image_size 8 --model.patch_size 4 --model.channels 3
--model.class_token learned --model.classes 4 --training.batch_size 6 --training.steps 4
--training.warmup_steps 2 --training.learning_rate 1e-2 --training.evaluate_every 0
--training.save_every 0 --training.tensorboard false --training.device cpu
--data.normalisation imagenet --data.resize 10""".split()  # noqa: SIM905

# What a newcomer runs; nothing of ours is imported by name.
LOADER = """
import json, torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline
model = AutoModelForImageClassification.from_pretrained("hub", trust_remote_code=True)
processor = AutoImageProcessor.from_pretrained("hub", trust_remote_code=True)
pixels = processor(Image.open("asked.png"), return_tensors="pt")
with torch.no_grad():
    logits = model(**pixels).logits
ask = pipeline("image-classification", model="hub", trust_remote_code=True, top_k=4)
print(json.dumps({"labels": model.config.id2label, "logits": logits.tolist(),
                  "pixels": pixels["pixel_values"].tolist(), "said": ask("asked.png")}))
"""


def test_an_array_is_one_picture_or_several() -> None:
    from magneto.hf import MagnetoImageProcessor, MagnetoSegmentationProcessor

    several = np.random.default_rng(0).integers(0, 256, (3, 9, 7, 3), np.uint8)
    for processor in (MagnetoImageProcessor(image_size=6), MagnetoSegmentationProcessor()):
        found = processor.preprocess(several, return_tensors="np")["pixel_values"]
        alike = processor.preprocess(list(several), return_tensors="np")["pixel_values"]
        alone = processor.preprocess(several[1], return_tensors="np")["pixel_values"]
        assert found.shape[:2] == (3, 3) and np.array_equal(found, alike)
        assert np.array_equal(alone, found[1:2])


def write_images(folder: Path) -> None:
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(4):
            image = Image.new("RGB", (14 + number, 12), colour)
            Image.blend(image, Image.new("RGB", image.size, "grey"), number / 8).save(
                folder / name / f"{number}.png"
            )


def test_an_exported_run_says_the_same_in_a_new_process(tmp_path: Path, newcomer: Newcomer) -> None:
    for split in ("train", "val"):
        write_images(tmp_path / "images" / split)
    run = tmp_path / "run"
    words = ["--data", str(tmp_path / "images"), "--out", str(run), *SMALL]
    assert main(["train", "image-classification/tiny", *words]) == 0
    assert main(["export", str(run), str(tmp_path / "hub")]) == 0
    asked = Image.new("RGB", (21, 13), "blue")
    asked.paste("red", (0, 0, 7, 13))
    asked.save(tmp_path / "asked.png")
    found = json.loads(newcomer.run(tmp_path, LOADER))
    assert list(found["labels"].values()) == ["apple", "grass", "sky", "3"]

    opened = load_run(run, "auto", {"training.device": "cpu"})
    task = opened.task
    transform = validation_transform(task.data_config, task.reading)  # type: ignore[attr-defined]
    picture = EncodedPicture((tmp_path / "asked.png").read_bytes())
    pixels = torch.from_numpy(transform(picture, None))[None]  # type: ignore[arg-type]
    assert torch.equal(torch.tensor(found["pixels"]), pixels)
    with torch.no_grad():
        logits = opened.model.cpu().eval()(pixels)
    torch.testing.assert_close(torch.tensor(found["logits"]), logits, rtol=0, atol=1e-6)
    said = {each["label"]: each["score"] for each in found["said"]}
    shares = [said[name] for name in ("apple", "grass", "sky", "3")]
    assert shares == pytest.approx(logits.softmax(1)[0].tolist(), abs=1e-5)
