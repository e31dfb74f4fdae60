"""Tables of any source: text files, folders of media, tar shards, Parquet files, and the hub.

Media are not decoded. Unreadable records are counted and skipped.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from magneto.data.cache import cache_directory, create_cached, file_states, fingerprint, is_cached
from magneto.data.files import (
    RECORDS,
    decode_line,
    existing_path,
    has_ending,
    is_list,
    is_table,
    number_records,
    number_rows,
    open_table,
    parse_value,
    quoted_separator,
    tar_members,
    unit_of,
    unpacked_name,
    walk_files,
)
from magneto.data.media import ENDINGS, Files, HubMedia, MediaColumn, Members
from magneto.data.problems import BadRecord, Counts, guarded, join_words
from magneto.data.sources import (
    SPLIT_NAMES,
    HubDataset,
    Source,
    find_source,
    parse_source,
    paths_by_split,
    split_of,
    standard_splits,
)
from magneto.data.table import (
    COLUMN_ALIASES,
    NO_CLASS,
    Classes,
    Table,
    by_split,
    table_of_columns,
    table_of_records,
)
from magneto.files import read_json, user_path, write_json
from magneto.progress import SILENT, Progress

Layout = Callable[[Path, Counts], dict[str, Table]]
"""Function that returns a folder's tables by split, or {} for a folder with another layout."""

# Names of JSON files: COCO's captions, VQA v2's files, and captions in Karpathy's layout (but not
# Hugging Face's dataset_infos.json and dataset_dict.json).
COCO, VQA, KARPATHY = "captions*.json*", "v2_*mscoco_*.json*", "dataset[._][!di]*"
SUPPORTED = (f"Use a folder, hf:NAME, or a file that ends in {', '.join(RECORDS)} (also with "
             ".gz, .xz or .bz2), .parquet or .tar.")  # fmt: skip
OTHER_FILES = "files of other kinds left out"
NESTED = "in nested folders, labelled by the outer folder"
# Endings of files in class folders, by kind.
FOLDER_ENDINGS = {**ENDINGS, "text": (".txt",)}
# Names of a table that are looked up in subfolders, and the largest number of these subfolders.
SAMPLED_NAMES, MOST_FOLDERS = 5, 100
MEDIA_ENDINGS = tuple(ending for endings in ENDINGS.values() for ending in endings)
METADATA = ("metadata.csv", "metadata.jsonl")
# First bytes of media by the name of the hub library's feature.
BEGINNINGS = {
    "Image": re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF....WEBP|II\*\0|MM\0\*|P[1-6]\s"
                        rb"|\0\0\0.(jP  |ftypavi[fs])", re.DOTALL),
    "Audio": re.compile(rb"R(?:IFF|F64)....WAVE|fLaC|OggS|ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"
                        rb"|FORM....AIF", re.DOTALL),
}  # fmt: skip
# Rows that are searched for a value, whose first bytes tell the kind of media.
BYTES_LOOKED_AT = 100
# Members of an example in a shard by ending, with their columns.
MASK_MEMBERS = ("seg.png", "mask.png", "seg", "mask")
WORD_MEMBERS = {"cls": "label", "txt": "text", "caption": "text"}
# Place of a missing member. Places in shards are (shard number, first byte, size in bytes).
NO_PLACE = (-1, 0, -1)
# Largest text or JSON member, in bytes.
WORDS_BYTES = 1 << 20
UNREAD_WORDS = "unreadable text or JSON members"


def read_source(
    source: str,
    counts: Counts,
    kind: str = "image",
    progress: Progress = SILENT,
    layout: Layout | None = None,
) -> dict[str, Table]:
    """Return the tables of a source by split ("train", "validation", "test").

    Args:
        source: Source of the form PATH or hf:NAME[:CONFIG[:SPLIT]], but not a built-in source.
        counts: Counter that receives the numbers of skipped records.
        kind: Kind of the files in a folder: "image", "audio" or "text".
        progress: Progress display.
        layout: Function that reads a folder of media with a special layout (see `Layout`).

    Raises:
        FileNotFoundError: If the path does not exist. The message suggests the nearest path.
        ValueError: If the source is not supported. The message lists the supported sources.
    """
    found, place = find_source(source), user_path(source)
    # Tools that write tar shards leave tables of their records (.parquet) beside them.
    if found.kind == "hf" and not (place.is_dir() and find_shards(place)):
        return read_hub(found)
    path = existing_path(source)
    if path.is_file() and path.suffix != ".tar":
        if not has_ending(path, RECORDS):
            raise ValueError(f"Unsupported source {path}. {SUPPORTED}")
        return by_split(read_file(path, counts), counts)
    if shards := find_shards(path):
        parts = shards_by_split(path, shards)
        return {split: read_shards(own, counts, progress) for split, own in parts.items()}
    files = find_files(path)
    if "train" not in files:
        files = find_metadata(path)
    if files:
        tables = {split: read_file(file, counts) for split, file in files.items()}
        return by_split(tables["train"], counts) if [*tables] == ["train"] else tables
    own = layout(path, counts) if layout else {}
    if not own and kind not in ENDINGS:
        raise ValueError(f"Unsupported source {path}. {SUPPORTED}")
    return own or read_folders(path, kind, counts)


def layout_files(source: str, names: str) -> list[Path]:
    """Return a source's JSON files that match the glob pattern `names`.

    Files whose JSON value is a list are left out. The source is a file, or a folder that is
    searched two levels deep.
    """
    if parse_source(source).kind != "path":
        return []
    path = existing_path(source)
    inside = (file for depth in ("", "*/", "*/*/") for file in path.glob(depth + names))
    found = inside if path.is_dir() else [path] if path.match(names) else []
    return sorted(file for file in found if has_ending(file, (".json",)) and not is_list(file))


def find_files(
    folder: Path,
    endings: tuple[str, ...] = RECORDS,
    splits: Mapping[str, Sequence[str]] = SPLIT_NAMES,
) -> dict[str, Path]:
    """Find files such as train.jsonl and dev.jsonl in a folder, and return their paths by split.

    Args:
        folder: The folder.
        endings: Endings of file names, such as ".jsonl". The function also finds compressed files
            (".jsonl.gz").
        splits: Accepted names of each split, in order of preference.

    Raises:
        ValueError: If two files have the same split name, such as train.jsonl and train.csv.
    """
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if has_ending(path, endings):
            files.setdefault(Path(unpacked_name(path)).stem.lower(), []).append(path)
    found = standard_splits(files, splits)
    for one, other, *_ in (paths for paths in found.values() if len(paths) > 1):
        raise ValueError(f"two files for one split: {one} and {other}. Remove one.")
    return {split: paths[0] for split, paths in found.items()}


def find_metadata(folder: Path) -> dict[str, Path]:
    """Find train/metadata.csv and similar tables, and return their paths by split.

    This is the layout of Hugging Face's imagefolder and audiofolder: the folder of each split has a
    table, metadata.csv or metadata.jsonl, beside its files. If the split "train" is missing, or a
    split has no table, return an empty dictionary.
    """
    splits = standard_splits({path.name.lower(): path for path in sorted(folder.iterdir())})
    tables = {split: [place / name for name in METADATA if (place / name).is_file()]
              for split, place in splits.items()}  # fmt: skip
    complete = "train" in tables and all(tables.values())
    return {split: found[0] for split, found in tables.items()} if complete else {}


def read_file(path: Path, counts: Counts) -> Table:
    """Return the table of a record file.

    Paths in the file are relative to the file's folder. A .jsonl file has an object per line. A
    .json file has a list of objects, or an object per line. .csv and .tsv files have a header.

    Raises:
        ValueError: If the file is damaged or empty.
    """
    if is_table(path):
        header, cells = open_table(path, counts)
        if not header:
            raise ValueError(f"{path} is empty, or the first line is blank. Write a header there.")
        names = list(dict.fromkeys(header))
        rows = list(number_rows(path, cells, header, counts, lambda row: list(row.values())))
        found = list(zip(*(row for _, row in rows), strict=True))
        columns = dict(zip(names, found or [()] * len(names), strict=True))
        separator = quoted_separator(path) if has_ending(path, (".csv",)) else "\t"
        table = table_of_columns(columns, str(path), path.parent, separator)
    else:
        rows = list(number_records(path, counts, lambda record: record))
        if not rows:
            raise ValueError(f"{path} has no records{counts.describe()}")
        table = table_of_records([record for _, record in rows], str(path), path.parent)
    numbers = np.array([number for number, _ in rows], np.int64)
    return replace(table, numbers=numbers, unit=unit_of(path))


def media_column(table: Table, name: str) -> MediaColumn:
    """Return a column of paths as a column of media.

    Paths are relative to the table's folder (see `find_place`). Missing paths and values that are
    not text become "".
    """
    column = table.columns[name]
    if isinstance(column, MediaColumn):
        return column
    names = [_path(value) for value in column]
    folder, ending = find_place(table.root, [name for name in names if name][:SAMPLED_NAMES])
    return Files(table.root, [f"{folder}{name}{ending}" if name else "" for name in names])


def find_place(root: Path, names: Sequence[str]) -> tuple[str, str]:
    """Return the subfolder and the ending of the files `names`, for example ("clips/", ".mp3").

    Most of the names must have a file in the subfolder. Subfolder and ending are "" if a name
    contains "/", if `root` itself contains a file with one of the names, or if several subfolders
    or endings fit.
    """
    if any("/" in name or (root / name).exists() for name in names) or not root.is_dir():
        return "", ""
    folders = ["", *(f"{entry.name}/" for entry in root.iterdir() if entry.is_dir())]
    places = [(folder, end) for folder in folders[:MOST_FOLDERS] for end in ("", *MEDIA_ENDINGS)]
    found = [
        (folder, end) for folder, end in places
        if 2 * sum((root / f"{folder}{name}{end}").is_file() for name in names) > len(names)
    ]  # fmt: skip
    return found[0] if len(found) == 1 else ("", "")


def _path(value: Any) -> str:
    if isinstance(value, Mapping):  # format of the Hugging Face hub
        value = value.get("path")
    return value.strip() if isinstance(value, str) else ""


def read_folders(folder: Path, kind: str, counts: Counts) -> dict[str, Table]:
    """Return the media or texts in a folder as tables by split.

    Subfolders may be named after splits, such as train and val, or train2017 and val2017. If no
    subfolder is named after a split, all files belong to the split "train".

    Raises:
        ValueError: If a folder has no files of the kind.
    """
    inside = subfolders(folder)
    splits = split_folders(inside)
    rest = [path for path in inside.values() if path not in splits.values()]
    if "train" not in splits:
        splits = {} if rest else splits
    elif any(has_files(path, kind) for path in rest):
        usual = standard_splits(inside)
        if "train" not in usual and len(splits) > 1:
            own = join_words([path.name for path in splits.values()])
            others = f"other folders ({join_words([path.name for path in rest], 5)})"
            raise ValueError(f"{folder} has folders of splits ({own}) and {others}. Remove "
                             "the other folders, or use a table.")  # fmt: skip
        # Alone among others, a folder train without subfolders is a class of vehicles.
        alone = len(usual) < 2 and not any(path.is_dir() for path in splits["train"].iterdir())
        splits = {} if alone or "train" not in usual else usual
    splits = splits or {"train": folder}
    return {split: read_folder(unwrapped(path), kind, counts) for split, path in splits.items()}


def split_folders(inside: Mapping[str, Path]) -> dict[str, Path]:
    """Return folders by split. Names such as val2017 count only beside a folder for training."""
    usual = standard_splits(inside)
    named = {split: path for name, path in inside.items() if (split := split_of(name))}
    return named | usual if "train" in named else usual


def subfolders(folder: Path) -> dict[str, Path]:
    """Return the folders in a folder by name in lower case, sorted by name."""
    return {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}


def unwrapped(folder: Path) -> Path:
    """Return `folder`, or its only entry if that is a folder of the same name, such as val/val."""
    inside = [*folder.iterdir()]
    alone = len(inside) == 1 and inside[0].name == folder.name and inside[0].is_dir()
    return unwrapped(inside[0]) if alone else folder


def has_files(folder: Path, kind: str) -> bool:
    return any(True for _ in media_names(folder, kind, Counts()))


def read_folder(folder: Path, kind: str, counts: Counts) -> Table:
    """Return the table of the media below a folder.

    A file's label is the name of the subfolder of `folder` that contains the file, directly or
    deeper. Files directly in `folder` have no label. Classes are numbered in alphabetical order, as
    in torchvision's `ImageFolder`.
    """
    names = list(media_names(folder, kind, counts))
    if not names:
        endings = ", ".join(FOLDER_ENDINGS[kind])
        raise ValueError(f"no {kind} files in {folder}: none ends in {endings}")
    words = [first if rest else None for first, _, rest in (n.partition("/") for n in names)]
    for name in names:
        if name.count("/") > 1:
            counts.record(f"{kind}s {NESTED}", name, f"class {name.partition('/')[0]}")
    known = sorted({word for word in words if word is not None})
    numbers: dict[str | None, int] = {word: number for number, word in enumerate(known)}
    labels = np.array([numbers.get(word, NO_CLASS) for word in words], np.int64)
    columns = {kind: Files(folder, names), "label": Classes(labels, known)}
    return table_of_columns(columns, str(folder), folder)


def media_names(folder: Path, kind: str, counts: Counts) -> Iterator[str]:
    for path in walk_files(folder, counts):
        if path.name.lower().endswith(FOLDER_ENDINGS[kind]):
            yield path.relative_to(folder).as_posix()
        else:
            counts[OTHER_FILES] += 1


def find_shards(source: Path) -> list[Path]:
    if source.is_file():
        return [source] if source.suffix == ".tar" else []
    found = [*source.glob("*.tar"), *source.glob("*/*.tar")]
    return sorted(path for path in found if not path.name.startswith("."))


def shards_by_split(source: Path, shards: Sequence[Path]) -> dict[str, list[Path]]:
    folder = source if source.is_dir() else source.parent
    return paths_by_split(shards, [str(p.relative_to(folder).with_suffix("")) for p in shards])


def read_shards(shards: Sequence[Path], counts: Counts, progress: Progress = SILENT) -> Table:
    """Return the table of tar shards.

    Files with the same key (a.jpg, a.cls, a.json) form an example. Media are in the columns
    "image", "mask" and "audio". The column "key" has the keys. Each field of a JSON file gets a
    column. The columns "label" and "text" contain labels and texts, even if their JSON fields have
    other names, such as "class" and "caption". Examples are shuffled over all shards.

    Raises:
        ValueError: If the shards have no examples.
    """
    index = _kept_index(shards, progress)
    counts.update(Counts.of_plain(index["counts"]))
    where = str(shards[0] if len(shards) == 1 else shards[0].parent)
    if not index["examples"]:
        raise ValueError(f"no examples in the tar files of {where}{counts.describe()}")
    keys, places, values = zip(*index["examples"], strict=True)
    media = {
        kind: Members(shards, keys, np.array([own.get(kind, NO_PLACE) for own in places], np.int64))
        for kind in dict.fromkeys(kind for own in places for kind in own)
    }
    columns = table_of_records(values).columns
    return table_of_columns({**columns, **media, "key": keys}, where)


def _kept_index(shards: Sequence[Path], progress: Progress) -> dict[str, Any]:
    held = cache_directory() / f"shards-{fingerprint(file_states(shards))}"
    if not is_cached(held, progress):
        examples, counts = list[Any](), Counts()
        for number, shard in enumerate(shards):
            progress.update("indexing shards", number, len(shards))
            examples += _shard_examples(shard, number, counts)
        progress.update("indexing shards", len(shards), len(shards))
        with create_cached(held) as temporary:
            value = {"examples": examples, "counts": counts.plain()}
            write_json(temporary / "index.json", value)
    return read_json(held / "index.json")


def _shard_examples(shard: Path, number: int, counts: Counts) -> Iterator[tuple[str, Any, Any]]:
    key = ""
    members: dict[str, tuple[tuple[int, int, int], Any]] = {}
    for file, member in tar_members(shard, counts):
        folder, slash, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        if (folder + slash + stem) != key:
            if members:
                yield key, *_joined(members)
            key, members = folder + slash + stem, {}
        place = (number, member.offset_data, member.size)
        values = _member_values(file, member, ending.lower(), shard, counts)
        members[ending.lower()] = (place, values)
    if members:
        yield key, *_joined(members)


def _member_values(
    file: tarfile.TarFile, member: tarfile.TarInfo, ending: str, shard: Path, counts: Counts
) -> dict[str, Any]:
    if ending not in (*WORD_MEMBERS, "json"):
        return {}
    where = f"{shard}, {member.name}"
    if member.size > WORDS_BYTES:
        counts.record(UNREAD_WORDS, where, f"longer than {WORDS_BYTES:,} bytes")
        return {}
    opened = file.extractfile(member)
    text = decode_line(opened.read(), counts, shard / member.name, 1).strip() if opened else ""
    if ending != "json":
        return {WORD_MEMBERS[ending]: text} if text else {}
    try:
        with guarded():
            value = parse_value(text, counts)
    except BadRecord as error:
        counts.record(UNREAD_WORDS, where, str(error))
        return {}
    if not isinstance(value, dict):
        return {"label": value} if _is_plain(value) else {}
    found = {name: part for name, part in value.items() if _is_plain(part)}
    for what in ("label", "text"):
        usual = next((found[name] for name in COLUMN_ALIASES[what] if name in found), None)
        found |= {} if usual is None else {what: usual}
    return found


def _is_plain(value: Any) -> TypeGuard[str | int | float | list[str]]:
    is_texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
    return isinstance(value, str | int | float) or is_texts


def _joined(members: Mapping[str, tuple[Any, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    places: dict[str, Any] = {}
    for ending, (place, _) in members.items():
        kinds = (kind for kind, own in ENDINGS.items() if f".{ending}".endswith(own))
        kind = "mask" if ending in MASK_MEMBERS else next(kinds, None)
        if kind is not None:
            places.setdefault(kind, place)
    # Values of text members override those of JSON.
    values: dict[str, Any] = {}
    for ending in sorted(members, key="json".__eq__):
        values = {**members[ending][1], **values}
    return places, values


class HubValues(Sequence[Any]):
    """Column of plain values of a hub data set, loaded on first access."""

    def __init__(self, dataset: Any, column: str) -> None:
        self.dataset, self.column = dataset, column

    @cached_property
    def _values(self) -> list[Any]:
        alone = self.dataset.select_columns([self.column]).with_format("arrow")[:]
        return alone[self.column].to_pylist()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: Any) -> Any:
        return self._values[number]


def read_hub(source: Source, splits: Mapping[str, Sequence[str]] = SPLIT_NAMES) -> dict[str, Table]:
    """Return the tables of a data set on the hub, or of Parquet files, by split.

    If the source is hf:NAME:CONFIG:SPLIT, this split is used as "train". If no split has a usual
    name, the first split is used as "train".

    Args:
        source: Source of kind "hf".
        splits: Accepted names of each split, in order of preference.

    Raises:
        ConfigError: If the data set can't be loaded.
    """
    dataset = HubDataset(source)
    return {
        split: _hub_table(dataset, dataset.load(source.config, name), f"{source} ({name})")
        for split, name in dataset.chosen_splits(source.config, splits).items()
    }


def _kind_of_bytes(loaded: Any, column: str, feature: Any) -> str | None:
    packed = isinstance(feature, dict) and {"bytes", "path"} <= feature.keys()
    if not packed and getattr(feature, "dtype", "") not in ("binary", "large_binary"):
        return None
    for row in loaded.select_columns([column]).select(range(min(len(loaded), BYTES_LOOKED_AT))):
        value = row[column]
        if content := (value or {}).get("bytes") if packed else value:
            return next((kind for kind, begin in BEGINNINGS.items() if begin.match(content)), None)
    return None


def _hub_table(dataset: HubDataset, loaded: Any, where: str) -> Table:
    columns: dict[str, Any] = {}
    for name, feature in loaded.features.items():
        kind = type(feature).__name__
        if kind not in ("Image", "Audio"):
            kind = _kind_of_bytes(loaded, name, feature) or kind
        if kind in ("Image", "Audio"):
            undecoded = getattr(dataset.library, kind)(decode=False)
            alone = loaded.select_columns([name]).cast_column(name, undecoded)
            columns[name] = HubMedia(alone, name, where, kind.lower())
        elif kind == "ClassLabel":
            known = (NO_CLASS if n is None or n < 0 else n for n in HubValues(loaded, name))
            columns[name] = Classes(np.array([*known], np.int64), feature.names)
        else:
            columns[name] = HubValues(loaded, name)
    return table_of_columns(columns, where)
