"""Small folders in the layout of NLVR2."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def write_image(path: Path, brightness: int, size: tuple[int, int] = (8, 8)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), brightness, np.uint8)).save(path, format="PNG")


def write_lines(path: Path, records: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))


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
                    write_image(
                        folder / shard / name, 10 * (group % 5) + (200 if side != pair else 0)
                    )
        write_lines(folder / "nlvr" / "nlvr2" / "data" / f"{split}.json", records)
