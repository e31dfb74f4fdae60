"""Small images with texts in the layouts of captions, tar shards, VQA v2 and NLVR2."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}
COUNT = 8


def png(colour: str, draw: np.random.Generator) -> bytes:
    """Return an image of a colour, with some noise, as a file."""
    from PIL import Image

    noise = draw.integers(0, 30, (12, 12, 3))
    file = io.BytesIO()
    pixels = np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def examples(draw: np.random.Generator) -> Iterable[tuple[int, str, bytes]]:
    """Yield numbers, colours and files of images, by turns."""
    for number in range(COUNT):
        colour = tuple(COLOURS)[number % 2]
        yield number, colour, png(colour, draw)


def make_pairs(folder: Path, draw: np.random.Generator) -> None:
    """Write train.jsonl and validation.jsonl, with their images."""
    for split in ("train", "validation"):
        (folder / "images").mkdir(parents=True, exist_ok=True)
        lines = []
        for number, colour, image in examples(draw):
            name = f"images/{split}-{number}.png"
            (folder / name).write_bytes(image)
            texts = [f"a {colour} square, the number {number}", f"{number} is {colour}"]
            lines.append(json.dumps({"image": name, "captions": texts}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def make_shards(folder: Path, draw: np.random.Generator) -> None:
    """Write a tar shard for each split: an image and its caption beside it."""
    for split in ("train", "validation"):
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / f"{split}-0.tar", "w") as file:
            for number, colour, image in examples(draw):
                for ending, content in (("png", image), ("txt", f"{number} {colour}".encode())):
                    entry = tarfile.TarInfo(f"{number:03d}.{ending}")
                    entry.size = len(content)
                    file.addfile(entry, io.BytesIO(content))


def make_questions(folder: Path, draw: np.random.Generator) -> None:
    """Write VQA v2's two annotated splits, two questions an image."""
    for split, first in (("train2014", 0), ("val2014", 1000)):
        questions: list[Any] = []
        annotations: list[Any] = []
        (folder / split).mkdir(parents=True)
        for row, colour, image in examples(draw):
            number = first + row + 1
            (folder / split / f"COCO_{split}_{number:012d}.jpg").write_bytes(image)
            asked = {"What colour is it?": colour, "Is it red?": ("no", "yes")[colour == "red"]}
            for place, (text, answer) in enumerate(asked.items()):
                known = {"image_id": number, "question_id": 10 * number + place}
                questions.append({**known, "question": text})
                annotations.append({
                    **known, "question_type": "what", "answer_type": "other",
                    "multiple_choice_answer": answer,
                    "answers": [{"answer": answer, "answer_id": i} for i in range(10)],
                })  # fmt: skip
        for name, kind, rows in (("OpenEnded_mscoco", "questions", questions),
                                 ("mscoco", "annotations", annotations)):  # fmt: skip
            file = folder / f"v2_{name}_{split}_{kind}.json"
            file.write_text(json.dumps({kind: rows}))


def make_statements(folder: Path, draw: np.random.Generator) -> None:
    """Write NLVR2's files: a sentence about two images each, true or false."""
    for split in ("train", "dev"):
        (folder / split).mkdir(parents=True)
        lines = []
        for number, colour, image in examples(draw):
            for side in (0, 1):
                (folder / split / f"{split}-{number}-0-img{side}.png").write_bytes(image)
            lines += [
                json.dumps({"sentence": f"both images are {said}", "label": str(said == colour),
                            "identifier": f"{split}-{number}-0-{place}"})
                for place, said in enumerate(COLOURS)
            ]  # fmt: skip
        (folder / f"{split}.json").write_text("\n".join(lines) + "\n")
