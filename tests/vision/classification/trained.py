"""A small classifier, trained on folders of coloured images that are named like ImageNet's."""

from pathlib import Path

from magneto.cli import main
from tests.vision.image_files import Image

COLOURS = {
    "n01000001": "red", "n01000002": "lime", "n01000003": "blue", "n01000004": "white",
    "n01000005": "black", "n01000006": "yellow",
}  # fmt: skip
SMALL = """--model.width 16 --model.layers 2 --model.heads 2 --model.ffn_width 24
--model.max_length 5 --model.image_size 8 --model.patch_size 4 --model.channels 3
--model.class_token learned --model.classes 7 --training.batch_size 8 --training.warmup_steps 2
--training.learning_rate 1e-2 --training.evaluate_every 0 --training.save_every 0
--training.tensorboard false --training.device cpu""".split()  # noqa: SIM905


def write_colours(folder: Path, names: dict[str, str], each: int = 6) -> Path:
    """Write a folder per class with images of one colour, each of another brightness."""
    for place, colour in names.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            image = Image.new("RGB", (9 + number, 12), colour)
            image = Image.blend(image, Image.new("RGB", image.size, "grey"), number / 20)
            image.save(folder / place / f"ILSVRC2012_val_{number + 1:08}.png")
    return folder


def train_classifier(place: Path, task: str = "image-classification", *words: str) -> Path:
    """Train on images/ in a folder; return the run."""
    images, run = place / "images", place / task
    write_colours(images / "train", COLOURS)
    write_colours(images / "val", COLOURS, 2)
    given = ["train", f"{task}/tiny", "--data", str(images), "--out", str(run), *SMALL, *words]
    assert main(given) == 0
    return run
