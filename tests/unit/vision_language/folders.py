"""Small folders in the layouts of VQA v2, of NLVR2, and of Karpathy's captions."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.shards import write_lines
from tests.unit.vision.image_files import encoded, write

# Of VQA v2: the number of the image before a split's first.
FIRST = {"train2014": 0, "val2014": 1000, "test2015": 2000, "test-dev2015": 2000}
COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}


def png(colour: tuple[int, int, int], size: int = 8) -> bytes:
    return encoded(np.full((size, size, 3), colour, np.uint8))


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
    for split, first in FIRST.items():
        questions, annotations = [], []
        for number in range(first + 1, first + images + 1):
            colour = ("red", "blue")[number % 2]
            write(image_file(folder, split, number), png(COLOURS[colour]))
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
    name = f"v2_OpenEnded_mscoco_{split}_questions.json"
    write_lines(folder / name, [{"questions": questions}])
    if not split.startswith("test"):
        name = f"v2_mscoco_{split}_annotations.json"
        write_lines(folder / name, [{"annotations": annotations}])


def grey(brightness: int) -> bytes:
    return png((brightness,) * 3)


def nlvr2_record(split: str, group: int, pair: int, sentence: int, label: Any) -> dict[str, Any]:
    return {"sentence": f"the left of {group} and {sentence} is darker", "label": label,
            "identifier": f"{split}-{group}-{pair}-{sentence}", "synset": "x"}  # fmt: skip


def write_nlvr2(
    folder: Path, splits: Iterable[str] = ("train", "dev", "test1"), groups: int = 6,
    shards: bool = True,
) -> None:  # fmt: skip
    """Two pairs of images in each group: the left one is dark in those of even number."""
    for split in splits:
        records = []
        for group in range(groups):
            for pair in range(2):
                records += [nlvr2_record(split, group, pair, 0, str(pair == 0))]
                shard = f"images/train/{group % 3}" if split == "train" and shards else split
                for side in range(2):
                    name = f"{split}-{group}-{pair}-img{side}.png"
                    brightness = 10 * (group % 5) + (200 if side != pair else 0)
                    write(folder / shard / name, grey(brightness))
        write_lines(folder / "nlvr" / "nlvr2" / "data" / f"{split}.json", records)


SPLITS = ("train", "train", "restval", "val", "test", "train", "val", "test")


def record(number: int, split: str) -> dict[str, Any]:
    sentences = [{"raw": f"image {number} of {split}", "sentid": 2 * number},
                 {"raw": f"brightness {20 * number}", "sentid": 2 * number + 1}]  # fmt: skip
    return {"filepath": f"{split}2014", "filename": f"COCO_{number}.jpg", "split": split,
            "imgid": number, "cocoid": number, "sentences": sentences}  # fmt: skip


def write_karpathy(folder: Path, splits: tuple[str, ...] = SPLITS) -> Path:
    """Image n has brightness 20 n, and two captions."""
    records = [record(number, split) for number, split in enumerate(splits)]
    for number, one in enumerate(records):
        write(folder / one["filepath"] / one["filename"], grey(20 * number % 256))
    return write_dataset(folder, records)


def write_dataset(folder: Path, records: list[Any]) -> Path:
    return write_lines(folder / "dataset_coco.json", [{"images": records, "dataset": "coco"}])
