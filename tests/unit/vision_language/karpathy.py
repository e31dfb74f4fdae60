"""A small set in Karpathy's layout."""

import json
from pathlib import Path
from typing import Any

from tests.unit.vision_language.nlvr2_folders import write_image

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
        write_image(folder / one["filepath"] / one["filename"], 20 * number % 256)
    return write_dataset(folder, records)


def write_dataset(folder: Path, records: list[Any]) -> Path:
    path = folder / "dataset_coco.json"
    path.write_text(json.dumps({"images": records, "dataset": "coco"}))
    return path
