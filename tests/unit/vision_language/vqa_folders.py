"""Small folders in the layout of VQA v2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SPLIT = {"train2014": 0, "val2014": 1000, "test2015": 2000, "test-dev2015": 2000}
COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}


def png(colour: tuple[int, int, int], size: int = 8) -> bytes:
    import io

    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.fromarray(np.full((size, size, 3), colour, np.uint8)).save(file, "PNG")
    return file.getvalue()


def image_file(folder: Path, split: str, number: int) -> Path:
    within = "test2015" if split.startswith("test") else split
    return folder / within / f"COCO_{within}_{number:012d}.jpg"


def annotated(number: int, image: int, answers: list[str], majority: str) -> dict[str, Any]:
    return {
        "question_id": number, "image_id": image, "question_type": "what colour",
        "answer_type": "yes/no" if majority in ("yes", "no") else "other",
        "multiple_choice_answer": majority,
        "answers": [{"answer": answer, "answer_confidence": "yes", "answer_id": i}
                    for i, answer in enumerate(answers, 1)],
    }  # fmt: skip


def write_vqa(folder: Path, images: int = 6, inner: str = "vqa") -> None:
    """Red and blue images, by turns; two questions each, one answered alike by all ten."""
    for split, first in SPLIT.items():
        questions, annotations = [], []
        for number in range(first + 1, first + images + 1):
            colour = ("red", "blue")[number % 2]
            path = image_file(folder, split, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(COLOURS[colour]))
            texts = ["What colour is it?", "Is it red?"]
            questions += [
                {"image_id": number, "question": text, "question_id": 10 * number + i}
                for i, text in enumerate(texts)
            ]
            yes = "yes" if colour == "red" else "no"
            annotations += [
                annotated(10 * number, number, [colour] * 7 + [f"The {colour}"] * 3, colour),
                annotated(10 * number + 1, number, [yes] * 10, yes),
            ]
        write_split(folder / inner, split, questions, annotations)


def write_split(folder: Path, split: str, questions: list[Any], annotations: list[Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"v2_OpenEnded_mscoco_{split}_questions.json"
    (folder / name).write_text(json.dumps({"questions": questions}))
    if not split.startswith("test"):
        name = f"v2_mscoco_{split}_annotations.json"
        (folder / name).write_text(json.dumps({"annotations": annotations}))
