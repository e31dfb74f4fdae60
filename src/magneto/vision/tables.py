"""Tables of paths and labels: .csv with commas, .tsv with tabs, columns named in the first row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto.config import nearest
from magneto.data.counts import Counts
from magneto.data.files import has_ending, unpacked_name
from magneto.data.problems import BadRecord, read_each
from magneto.data.records import read_quoted, read_tabs
from magneto.vision.config import ImageDataConfig
from magneto.vision.images import NO_MASKS, FileStore
from magneto.vision.listing import Listing, number_labels, standard_splits

ENDINGS = (".csv", ".tsv")
# Names of columns that are found where the recipe names none, best first.
IMAGE_COLUMNS = ("image", "img", "path", "file", "filename", "file_name", "image_path", "filepath")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "fine_label")
MASK_COLUMNS = ("mask", "annotation", "segmentation", "segmentation_mask", "label_map", "mask_path")

WITHOUT_MASK = "images without a mask"


def find_tables(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder that are named as splits are, if one is "train"."""
    files = {Path(unpacked_name(path)).stem.lower(): path
             for path in sorted(folder.iterdir()) if has_ending(path, ENDINGS)}  # fmt: skip
    found = standard_splits(files)
    return found if "train" in found else {}


def list_table(table: Path, config: ImageDataConfig, counts: Counts) -> Listing:
    """List the images that a table names; paths are relative to its folder.

    Raises:
        ValueError: If it has no rows, or no column of images.
    """
    comma = unpacked_name(table).endswith(".csv")
    rows = read_quoted(table, ",", counts) if comma else read_tabs(table, counts)
    header = next(rows, [])
    columns = pick_columns(header, config, str(table))

    def read(row: list[str]) -> tuple[str | None, ...] | None:
        if not any(row):
            return None
        if len(row) != len(header):
            raise BadRecord(f"{len(row)} cells, not {len(header)}")
        if not row[columns[0]].strip():
            raise BadRecord("no image")
        return tuple(row[at].strip() or None if at is not None else None for at in columns)

    found = list(read_each(rows, read, counts, f"{table}, row", first=2))
    if not found:
        raise ValueError(f"{table} has no rows{counts.describe()}")
    images, labels, masks = zip(*found, strict=True)
    absent = masks.count(None)
    store = NO_MASKS
    if absent < len(masks):
        counts[WITHOUT_MASK] += absent
        store = FileStore(table.parent, [mask or "" for mask in masks])
    return Listing(FileStore(table.parent, images), *number_labels(labels), store)


def pick_columns(
    header: Sequence[str], config: ImageDataConfig, where: str
) -> tuple[int, int | None, int | None]:
    """Return at which places images, labels and masks are; None where there are none.

    Raises:
        ValueError: If a column that the recipe names is not there, or none is of images.
    """
    names = [name.strip().lower() for name in header]
    wanted = (
        ("image", config.image_column, IMAGE_COLUMNS),
        ("label", config.label_column, LABEL_COLUMNS),
        ("mask", config.mask_column, MASK_COLUMNS),
    )
    found: list[int | None] = []
    for what, given, usual in wanted:
        if given:
            if given not in header:
                raise ValueError(f"{where} has no column {given!r} (data.{what}_column)"
                                 f"{nearest(given, list(header))}")  # fmt: skip
            found.append(list(header).index(given))
        else:
            known = () if given == "" else usual
            found.append(next((names.index(name) for name in known if name in names), None))
    images, labels, masks = found
    if images is None:
        raise ValueError(f"{where} has no column of images among {', '.join(header) or 'none'}: "
                         "name it, data.image_column")  # fmt: skip
    return images, labels, masks
