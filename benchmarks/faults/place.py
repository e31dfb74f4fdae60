"""Small data of each field, runs and weights, for faults to be put into."""

from __future__ import annotations

import json
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.faults.images_with_texts import (
    make_pairs,
    make_questions,
    make_shards,
    make_statements,
)
from magneto.cli import main

COMMON = (
    *("--training.tensorboard", "false", "--training.device", "cpu", "--training.steps", "4"),
    *("--training.save_every", "2", "--training.warmup_steps", "1", "--training.batch_size", "4"),
    *("--training.evaluate_limit", "2"),
)
SMALL = ("--model.width", "32", "--model.layers", "1", "--model.heads", "4", "--model.ffn_width",
         "48", *COMMON)  # fmt: skip
TEXT = (*SMALL, "--data.tokenizer", "bytes", "--data.max_length", "32")
SEEN = (*SMALL, "--model.image_size", "16", "--model.patch_size", "8")
READ = (*SEEN, "--data.tokenizer", "bytes")
# Recipe, what to change in it, and the data: file or folder, and the files in it that are damaged.
FIELDS = {
    "text": ("causal-lm/tiny", TEXT, "book.txt", "book.txt"),
    "lines of JSON": ("causal-lm/tiny", TEXT, "book.jsonl", "book.jsonl"),
    "classification": ("text-classification/tiny", TEXT, "rows.csv", "rows.csv"),
    "translation": (
        "translation/tiny",
        ("--model.encoder_layers", "1", "--model.decoder_layers", "1", "--data.languages", "en,de",
         "--data.tokenizer", "bytes", "--data.validation_fraction", "0.3", *COMMON),
        "pairs.tsv", "pairs.tsv",
    ),
    "speech": (
        "transducer/tiny",
        ("--data.validation_fraction", "0.3", "--model.layers", "1", *COMMON,
         "--training.batch_size", "1"),
        "speech/train.tsv", "speech/*",
    ),
    "images": (
        "image-classification/tiny",
        ("--data.validation_fraction", "0.4", *COMMON), "images", "images/*/*",
    ),
    "images in shards": (
        "image-modelling/tiny",
        (*SEEN, "--model.channels", "3", "--model.codes", "8", "--model.positions", "sinusoidal"),
        "shards", "shards/*",
    ),
    "captions": ("image-text-retrieval/tiny", READ, "captions", "captions/**/*.*"),
    "captions in shards": ("image-captioning/tiny", READ, "shards", "shards/*"),
    "questions": (
        "visual-question-answering/tiny",
        (*READ, "--data.least_answer_count", "1", "--data.validation_split", "val2014"),
        "questions", "questions/**/*.*",
    ),
    "statements": ("visual-reasoning/tiny", READ, "statements", "statements/**/*.*"),
}  # fmt: skip


def make_data(folder: Path) -> None:
    """Write the data of every field."""
    draw = np.random.default_rng(1)
    lines = [
        f"Sentence {i} speaks of the number {i * i} and of {i % 7} others." for i in range(400)
    ]
    (folder / "book.txt").write_text("\n\n".join(" ".join([line] * 40) for line in lines))
    (folder / "book.jsonl").write_text(
        "".join(json.dumps({"text": line * 4}) + "\n" for line in lines)
    )
    rows = [f'"{line}",{("odd", "even")[i % 2]}\n' for i, line in enumerate(lines)]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows))
    pairs = [f"the number {i}\tdie Zahl {i}\n" for i in range(200)]
    (folder / "pairs.tsv").write_text("en\tde\n" + "".join(pairs))
    speech = folder / "speech"
    speech.mkdir()
    table = ["path\ttext\n"]
    for i in range(12):
        with wave.open(str(speech / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes((draw.normal(size=6000) * 3000).astype("<i2").tobytes())
        table.append(f"{i}.wav\tnumber {i % 4}\n")
    (speech / "train.tsv").write_text("".join(table))
    make_images(folder / "images", draw)
    make_pairs(folder / "captions", draw)
    make_shards(folder / "shards", draw)
    make_questions(folder / "questions", draw)
    make_statements(folder / "statements", draw)


def make_images(folder: Path, draw: np.random.Generator) -> None:
    """Write small images in a folder per class."""
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            pixels = draw.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


def words(field: str, folder: Path, out: Path) -> list[str]:
    """Return the words that train on a field's data."""
    recipe, changes, source, _ = FIELDS[field]
    return ["train", recipe, "--data", str(folder / source), "--out", str(out), *changes]


def make_place(folder: Path) -> None:
    """Write data and a run of text; every module that the faults need is imported afterwards."""
    make_data(folder)
    for field in FIELDS:
        out = folder / "runs" / field.replace(" ", "-")
        if code := main(words(field, folder, out)):
            raise RuntimeError(f"the undamaged data of {field} ended with exit code {code}")
    main(["report", str(folder / "runs" / "text")])
    with suppress(ImportError):  # where transformers is not installed, nothing is converted
        import magneto.hf  # noqa: F401
