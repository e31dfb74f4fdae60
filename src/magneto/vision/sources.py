"""Where images come from: which reader a source's name, and what lies there, asks for."""

from __future__ import annotations

from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import existing_path, has_ending
from magneto.data.sources import Source, parse_source
from magneto.progress import Progress
from magneto.vision.builtin import digits
from magneto.vision.config import ImageDataConfig
from magneto.vision.folders import list_folder
from magneto.vision.hub import list_hub
from magneto.vision.listing import Listing
from magneto.vision.scenes import scenes
from magneto.vision.shards import find_shards, list_shards
from magneto.vision.tables import ENDINGS, find_tables, list_table


def list_source(
    source: str, config: ImageDataConfig, counts: Counts, progress: Progress
) -> dict[str, Listing]:
    """List the splits of a source: "train", "validation" and "test", as far as they are there.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If there are no images.
    """
    found = parse_source(source)
    if found.kind == "builtin":
        return {"train": digits()} if found.name == "digits" else scenes()
    if found.kind == "hf":
        return list_hub(found, config)
    path = existing_path(source)
    return list_path(path, config, counts, progress)


def list_path(
    path: Path, config: ImageDataConfig, counts: Counts, progress: Progress
) -> dict[str, Listing]:
    """List the splits of a file or folder: of a table, tar shards, parquet files or images."""
    if has_ending(path, ENDINGS):
        return {"train": list_table(path, config, counts)}
    if shards := find_shards(path):
        return list_shards(path, shards, counts, progress)
    if path.is_file():
        raise ValueError(f"{path} is no set of images: a file ends in {', '.join(ENDINGS)} or "
                         ".tar; else name a folder, or hf:NAME")  # fmt: skip
    if tables := find_tables(path):
        return {split: list_table(table, config, counts) for split, table in tables.items()}
    if any(path.glob("*.parquet")) or any(path.glob("*/*.parquet")):
        return list_hub(Source("hf", str(path)), config)
    return list_folder(path, counts)
