"""Tables from wherever examples lie: text files, folders of media, tar shards, parquet, the hub.

Nothing is decoded. A record that can't be read is counted and left out.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from magneto.data.cache import cache_directory, file_states, fingerprint, is_kept, made_whole
from magneto.data.files import (
    RECORDS,
    Record,
    decoded,
    existing_path,
    has_ending,
    is_table,
    open_table,
    parse_value,
    quoted_separator,
    read_rows,
    stream_records,
    tar_members,
    unpacked_name,
    walk_files,
)
from magneto.data.media import ENDINGS, Files, HubMedia, MediaColumn, Members
from magneto.data.problems import MALFORMED, BadRecord, Counts, guarded
from magneto.data.sources import (
    SPLIT_NAMES,
    HubDataset,
    Source,
    has_parquet,
    parse_source,
    split_of,
    standard_splits,
)
from magneto.data.table import NO_CLASS, USUAL, Classes, Table, by_split, table_of, whole_table
from magneto.files import read_json, write_json
from magneto.progress import SILENT, Progress

Layout = Callable[[Path, Counts], dict[str, Table]]
"""From a folder to its tables by split; none where the folder is not of this layout."""

SUPPORTED = (f"a file ends in {', '.join(RECORDS)} (maybe .gz, .xz or .bz2 after it), .parquet or "
             ".tar; else name a folder, or hf:NAME")  # fmt: skip
OTHER_FILES = "files of other kinds left out"
NESTED = "in folders inside those of the classes, which name no class"
# Of files in folders that name their classes.
FOLDER_ENDINGS = {**ENDINGS, "text": (".txt",)}
# How the bytes of media begin, by the kind that the hub's library calls them; and of how many rows
# they are looked at until one has some.
BEGINNINGS = {
    "Image": re.compile(rb"\x89PNG|\xff\xd8\xff|GIF8|BM|RIFF....WEBP|II\*\0|MM\0\*|P[1-6]\s"
                        rb"|\0\0\0.(jP  |ftypavi[fs])", re.DOTALL),
    "Audio": re.compile(rb"RIFF....WAVE|fLaC|OggS|ID3|\xff[\xf2\xf3\xfb]|FORM....AIF", re.DOTALL),
}  # fmt: skip
BYTES_LOOKED_AT = 100
# Members of an example in a shard, by ending, and the columns that they are.
MASK_MEMBERS = ("seg.png", "mask.png", "seg", "mask")
WORD_MEMBERS = {"cls": "label", "txt": "text", "caption": "text"}
# A larger member of JSON or of words is none.
WORDS_BYTES = 1 << 20
UNREAD_WORDS = "members of words or of JSON that can't be read"


def read_source(
    source: str,
    counts: Counts,
    kind: str = "image",
    progress: Progress = SILENT,
    layout: Layout | None = None,
) -> dict[str, Table]:
    """Return the tables of a source: "train", "validation" and "test", as far as they are there.

    Args:
        source: PATH or hf:NAME[:CONFIG[:SPLIT]]; what is built in is of a field.
        counts: Told of what is left out.
        kind: Of media, where it is a folder of them: one of `magneto.data.media.ENDINGS`; "text"
            for none.
        progress: Told of long work.
        layout: Of folders, that a field knows beside those of all.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If nothing can be read there; says what could be.
    """
    found = parse_source(source)
    if found.kind == "hf":
        return read_hub(found)
    path = existing_path(source)
    if path.is_file() and not path.name.endswith((".tar", ".parquet")):
        if not has_ending(path, RECORDS):
            raise ValueError(f"{path} is no set of examples: {SUPPORTED}")
        return by_split(read_file(path, counts), counts)
    if shards := find_shards(path):
        parts = shards_by_split(path, shards)
        return {split: read_shards(own, counts, progress) for split, own in parts.items()}
    if has_parquet(path):
        return read_hub(Source("hf", str(path)))
    files = find_files(path)
    if "train" in files:
        return {split: read_file(file, counts) for split, file in files.items()}
    own = layout(path, counts) if layout else {}
    if not own and kind not in ENDINGS:
        raise ValueError(f"{path} is no set of examples: {SUPPORTED}")
    return own or read_folders(path, kind, counts)


def find_files(
    folder: Path,
    endings: tuple[str, ...] = RECORDS,
    splits: Mapping[str, Sequence[str]] = SPLIT_NAMES,
) -> dict[str, Path]:
    """Return the files in a folder that are named as splits are.

    Args:
        folder: Where they lie.
        endings: That they have, unpacked.
        splits: Names of the splits, best first, where a field has others.

    Raises:
        ValueError: If two have one name.
    """
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if has_ending(path, endings):
            files.setdefault(Path(unpacked_name(path)).stem.lower(), []).append(path)
    found = standard_splits(files, splits)
    for one, other, *_ in (paths for paths in found.values() if len(paths) > 1):
        raise ValueError(f"two files for one split: {one} and {other}; keep one")
    return {split: paths[0] for split, paths in found.items()}


def read_file(path: Path, counts: Counts) -> Table:
    """Return the records of a file as a table; paths in it are relative to its folder.

    .jsonl has an object in each line; .json a list of them, or the same; .csv and .tsv name their
    columns in the first line.

    Raises:
        ValueError: If the file is damaged, or has no records.
    """
    if is_table(path):
        header, cells = open_table(path, counts)
        names = list(dict.fromkeys(header))
        found = list(zip(*read_rows(path, cells, header, counts, _cells), strict=True))
        columns = dict(zip(names, found or [()] * len(names), strict=True))
        separator = quoted_separator(path) if unpacked_name(path).endswith(".csv") else "\t"
        return whole_table(columns, str(path), path.parent, separator)
    records = list(stream_records(path, counts))
    if not records:
        raise ValueError(f"{path} has no records{counts.describe()}")
    return table_of(records, str(path), path.parent)


def _cells(record: Record) -> list[str]:
    return list(record.values())


def media_column(table: Table, name: str) -> MediaColumn:
    """Return a column of paths as one of media; a column of media is returned as it is.

    A record that has no path, or none that is a text, has none.
    """
    column = table.columns[name]
    if isinstance(column, MediaColumn):
        return column
    return Files(table.root, [_path(value) for value in column])


def _path(value: Any) -> str:
    if isinstance(value, Mapping):  # as the Hugging Face hub writes it
        value = value.get("path")
    return value.strip() if isinstance(value, str) else ""


def read_folders(folder: Path, kind: str, counts: Counts) -> dict[str, Table]:
    """Return the media, or texts, below a folder, or below a folder for each split in it.

    Raises:
        ValueError: If there are none.
    """
    inside = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    splits = standard_splits(inside)
    classes = set(inside.values()) - set(splits.values())
    if "train" not in splits and (classes or not splits):
        splits = {"train": folder}
    return {split: read_folder(path, kind, counts) for split, path in splits.items()}


def read_folder(folder: Path, kind: str, counts: Counts) -> Table:
    """Return the media below a folder; the label of each is the folder that it lies in.

    Classes are numbered in the order of the alphabet, also where they are numbers, as torchvision's
    `ImageFolder` does.
    """
    names = list(media_names(folder, kind, counts))
    if not names:
        endings = ", ".join(FOLDER_ENDINGS[kind])
        raise ValueError(f"no {kind} files in {folder}: none ends in {endings}")
    words = [first if rest else None for first, _, rest in (n.partition("/") for n in names)]
    for name in names:
        if name.count("/") > 1:
            counts.met(f"{kind}s {NESTED}", name, f"is of class {name.partition('/')[0]}")
    known = sorted({word for word in words if word is not None})
    numbers: dict[str | None, int] = {word: number for number, word in enumerate(known)}
    labels = np.array([numbers.get(word, NO_CLASS) for word in words], np.int64)
    columns = {kind: Files(folder, names), "label": Classes(labels, known)}
    return whole_table(columns, str(folder), folder)


def media_names(folder: Path, kind: str, counts: Counts) -> Iterator[str]:
    """Yield the media, or texts, below a folder, in order, relative to it; links are followed."""
    for path in walk_files(folder, counts):
        if path.name.lower().endswith(FOLDER_ENDINGS[kind]):
            yield path.relative_to(folder).as_posix()
        else:
            counts[OTHER_FILES] += 1


def find_shards(source: Path) -> list[Path]:
    """List the tar files of a folder, or of a folder per split in it; of a tar file itself."""
    if source.is_file():
        return [source] if source.suffix == ".tar" else []
    found = [*source.glob("*.tar"), *source.glob("*/*.tar")]
    return sorted(path for path in found if not path.name.startswith("."))


def shards_by_split(source: Path, shards: Sequence[Path]) -> dict[str, list[Path]]:
    """Return shards by the split that their folder or file name tells; "train" if nothing does."""
    parts: dict[str, list[Path]] = {}
    for shard in shards:
        place = shard.relative_to(source if source.is_dir() else source.parent)
        split = split_of(str(place.with_suffix("")))
        parts.setdefault(split or "train", []).append(shard)
    return parts


@dataclass
class Index:
    """Where examples lie in shards.

    Attributes:
        keys: What they are called.
        places: By column, (number of the shard, first byte, bytes) of each example's medium;
            (-1, 0, 0) where it has none.
        fields: By column, what each example's members of words and of JSON say; None if nothing.
        counts: What was odd.
    """

    keys: list[str] = field(default_factory=list)
    places: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    fields: dict[str, list[Any]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)


def read_shards(shards: Sequence[Path], counts: Counts, progress: Progress = SILENT) -> Table:
    """Return the examples of tar shards: files of one key are one (a.jpg, a.cls or a.json).

    An index of where each begins is made once, and kept in the cache: so any example is read at
    once, and the order is shuffled over all shards, which reading them from front to end can't do.
    Columns are "key", media by kind ("image", "mask", "audio"), and what words and JSON say: a
    label and a text are called "label" and "text", whatever member has them.

    Raises:
        ValueError: If there are no examples.
    """
    index = _kept_index(shards, progress)
    counts.update(index.counts)
    where = str(shards[0] if len(shards) == 1 else shards[0].parent)
    if not index.keys:
        raise ValueError(f"no examples in the tar files of {where}{counts.describe()}")
    media = {
        name: Members(shards, index.keys, np.array(places, np.int64))
        for name, places in index.places.items()
    }
    return whole_table({**index.fields, **media, "key": index.keys}, where)


def _kept_index(shards: Sequence[Path], progress: Progress) -> Index:
    """Return the index of shards from the cache; it is made if they, or it, are new."""
    held = cache_directory() / f"shards-{fingerprint(file_states(shards))}"
    if not is_kept(held, progress):
        made = Index()
        for number, shard in enumerate(shards):
            progress.update("indexing shards", number, len(shards))
            _add_shard(made, shard, number)
        progress.update("indexing shards", len(shards), len(shards))
        with made_whole(held) as aside:
            write_json(aside / "index.json", {**vars(made), "counts": made.counts.plain()})
    values = read_json(held / "index.json")
    return Index(**{**values, "counts": Counts.of_plain(values["counts"])})


def _add_shard(index: Index, shard: Path, number: int) -> None:
    """Add the examples of a shard; what is cut off at its end is counted."""
    end, key = shard.stat().st_size, ""
    members: dict[str, tuple[tuple[int, int, int], Any]] = {}
    try:
        with guarded(), tarfile.open(shard, "r:") as file:
            for member in tar_members(file):
                if member.size < 0 or member.offset_data + member.size > end:
                    raise tarfile.ReadError("unexpected end of data")
                folder, slash, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                if (folder + slash + stem) != key:
                    _add_example(index, key, members)
                    key, members = folder + slash + stem, {}
                place = (number, member.offset_data, member.size)
                said = _said(file, member, ending.lower(), shard, index.counts)
                members[ending.lower()] = (place, said)
    except BadRecord as error:
        index.counts.met(MALFORMED, str(shard), str(error))
    _add_example(index, key, members)


def _said(
    file: tarfile.TarFile, member: tarfile.TarInfo, ending: str, shard: Path, counts: Counts
) -> dict[str, Any]:
    """Return what a member of words or of JSON says, by column; one that can't be read, nothing."""
    if ending not in (*WORD_MEMBERS, "json"):
        return {}
    where = f"{shard}, {member.name}"
    if member.size > WORDS_BYTES:
        counts.met(UNREAD_WORDS, where, f"longer than {WORDS_BYTES:,} bytes")
        return {}
    opened = file.extractfile(member)
    text = decoded(opened.read(), counts, shard / member.name, 1).strip() if opened else ""
    if ending != "json":
        return {WORD_MEMBERS[ending]: text} if text else {}
    try:
        with guarded():
            value = parse_value(text, counts)
    except BadRecord as error:
        counts.met(UNREAD_WORDS, where, str(error))
        return {}
    if not isinstance(value, dict):
        return {"label": value} if _is_plain(value) else {}
    found = {name: part for name, part in value.items() if _is_plain(part)}
    for what in ("label", "text"):
        usual = next((found[name] for name in USUAL[what] if name in found), None)
        found |= {} if usual is None else {what: usual}
    return found


def _is_plain(value: Any) -> TypeGuard[str | int | float | list[str]]:
    is_texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
    return isinstance(value, str | int | float) or is_texts


def _add_example(index: Index, key: str, members: Mapping[str, tuple[Any, Any]]) -> None:
    if not members:
        return
    found: dict[str, Any] = {}
    for ending, (place, _) in members.items():
        kind = "mask" if ending in MASK_MEMBERS else _kind(ending)
        if kind is not None:
            found.setdefault(kind, place)
    # What a member says alone counts before what JSON does.
    said: dict[str, Any] = {}
    for ending in sorted(members, key="json".__eq__):
        said = {**members[ending][1], **said}
    count = len(index.keys)
    index.keys.append(key)
    _append(index.places, found, (-1, 0, 0), count)
    _append(index.fields, said, None, count)


def _append(
    columns: dict[str, list[Any]], values: Mapping[str, Any], nothing: Any, count: int
) -> None:
    """Add a row to columns of `count` rows; they may have others than the row."""
    for name in dict.fromkeys([*columns, *values]):
        columns.setdefault(name, [nothing] * count).append(values.get(name, nothing))


def _kind(ending: str) -> str | None:
    """Return the kind of media that an ending tells: the first of two, as in a.left.png."""
    return next((kind for kind, own in ENDINGS.items() if f".{ending}".endswith(own)), None)


class HubValues(Sequence[Any]):
    """A column of a data set of the hub, of values; loaded as a whole when it is first asked for.

    Args:
        dataset: That has the column.
        column: Its name.
    """

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
    """Return the splits of a data set of the hub, or of parquet files.

    A split that the source names is "train"; so is the first, where no name says what it is for.

    Args:
        source: Of kind "hf".
        splits: Their names, best first, where a field has others.

    Raises:
        ConfigError: If it can't be loaded.
    """
    dataset = HubDataset(source)
    return {
        split: _hub_table(dataset, dataset.load(source.config, name), f"{source} ({name})")
        for split, name in dataset.chosen_splits(source.config, splits).items()
    }


def _kind_of_bytes(loaded: Any, column: str, feature: Any) -> str | None:
    """Return "Image" or "Audio" for a column of plain bytes, told by how the first ones begin."""
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
            columns[name] = HubMedia(alone, name, where)
        elif kind == "ClassLabel":
            known = (NO_CLASS if n is None or n < 0 else n for n in HubValues(loaded, name))
            columns[name] = Classes(np.array([*known], np.int64), feature.names)
        else:
            columns[name] = HubValues(loaded, name)
    return whole_table(columns, where)
