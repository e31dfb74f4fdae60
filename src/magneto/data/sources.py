"""Sources and splits of data, and data sets of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from magneto.config import ConfigError
from magneto.data.files import RECORDS, has_ending, stream_records, walk_files
from magneto.data.problems import OTHER_SPLITS, Counts
from magneto.files import import_extra, user_path

T = TypeVar("T")

# Names of splits in files and data sets, in order of preference.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "devtest", "tst"),
}
# Split by name.
SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}
# Splits of a validation source, in order of preference.
VALIDATION_ORDER = ("validation", "test", "train")
SPLIT_WORD, NEWS_WORD = (
    re.compile(rf"(?:^|[./_-]){before}({'|'.join(SPLITS)})(?=$|[./_\d-])")
    for before in ("", "news")  # WMT's files are newstest2014.en and newsdev2016.en
)


def standard_splits(
    values: Mapping[str, T], names: Mapping[str, Sequence[str]] = SPLIT_NAMES
) -> dict[str, T]:
    """Return `values` with the standard keys "train", "validation" and "test".

    For example, the key "dev" becomes "validation". Keys that are unknown or not in lower case are
    left out.
    """
    found = {split: [values[word] for word in words if word in values]
             for split, words in names.items()}  # fmt: skip
    return {split: matches[0] for split, matches in found.items() if matches}


def hash_of(text: str) -> int:
    """Return a text's hash: an integer below 2^64, which is the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def held_out_limit(keys: Iterable[str], fraction: float) -> float:
    """Return the hash limit: keys with a lower hash are held out.

    Hashes are below 2^64, and the limit is usually `fraction` times 2^64. Among two or more
    different keys, at least one is held out, and at least one is kept. If there is only one key, it
    is kept.
    """
    limit, least, most = fraction * 2**64, 2**64, -1
    for place in map(hash_of, keys):
        least, most = min(least, place), max(most, place)
        if least < limit <= most:
            return limit
    return min(max(limit, least + 1), most)


def split_of(name: str) -> str | None:
    """Return the split that a path's name contains, such as "validation" for "photos/val", or None.

    If the name contains several splits, the last one is returned.
    """
    found = SPLIT_WORD.findall(name.lower()) or NEWS_WORD.findall(name.lower())
    return SPLITS[found[-1]] if found else None


def paths_by_split(paths: Iterable[Path], names: Iterable[str]) -> dict[str, list[Path]]:
    """Group `paths` by split. `names` has a name for each path, such as "photos/val".

    A path belongs to "train" if its name contains no split.
    """
    parts: dict[str, list[Path]] = {}
    for path, name in zip(paths, names, strict=True):
        parts.setdefault(split_of(name) or "train", []).append(path)
    return parts


def split_field(names: Iterable[str]) -> str | None:
    """Return the first of `names` that is "split" in upper or lower case, or None."""
    return next((name for name in names if name.strip().lower() == "split"), None)


def split_of_word(word: Any) -> str | None:
    return SPLITS.get(str(word).strip().lower())


def split_of_record(record: Mapping[str, Any]) -> str | None:
    field = split_field(record)
    return "train" if field is None else split_of_word(record[field])


def in_split(record: Mapping[str, Any], split: str, counts: Counts) -> bool:
    """Return whether a record belongs to `split`. Every record belongs to the split ""."""
    own = split_of_record(record) if split else ""
    if own is None and split == "train":
        counts[OTHER_SPLITS] += 1
    return own == split


def named_splits(files: Iterable[Path]) -> set[str]:
    """Return the splits that the records have in the field "split".

    The result is empty if no record has "train" in this field.
    """
    found: set[str | None] = set()
    for path in files:
        if has_ending(path, RECORDS):
            for record in stream_records(path, Counts()):
                if split_field(record) is None or {"train", "validation"} <= found:
                    break
                found.add(split_of_record(record))
    return {split for split in found if split} if "train" in found else set()


def held_out(text: str, fraction: float) -> bool:
    return hash_of(text) < fraction * 2**64


@dataclass(frozen=True)
class Source:
    """Parts of a source name.

    Attributes:
        kind: Kind of the source: "path", "hf" or "builtin".
        name: Path of a file, folder or local data set, or name of a data set on the hub.
        config: Configuration of a data set on the hub, or "".
        split: Split of a data set on the hub, or "".
    """

    kind: Literal["path", "hf", "builtin"]
    name: str
    config: str = ""
    split: str = ""

    def __str__(self) -> str:
        parts = [self.name, self.config, self.split]
        prefix = "" if self.kind == "path" else f"{self.kind}:"
        return prefix + ":".join(parts).rstrip(":")


def parse_source(source: str) -> Source:
    """Divide a source, such as hf:NAME:CONFIG, into its parts.

    Raises:
        ValueError: If a source lacks a name after "hf:".
    """
    if source.startswith("builtin:"):
        return Source("builtin", source.removeprefix("builtin:"))
    if source.startswith("hf:"):
        found = Source("hf", *[*source.split(":"), "", ""][1:4])
        if not found.name.strip("/"):
            raise ValueError(f"{source!r} lacks a name: write hf:NAME[:CONFIG[:SPLIT]]")
        return found
    return Source("path", source)


def has_parquet(path: Path) -> bool:
    if not os.path.isdir(path):
        return path.suffix == ".parquet" and os.path.isfile(path)
    return any(path.glob("*.parquet")) or any(path.glob("*/*.parquet"))


def find_source(source: str) -> Source:
    """Parse a source. The kind of a path with Parquet files is "hf", not "path"."""
    found = parse_source(source)
    if found.kind == "path" and has_parquet(user_path(source)):
        return Source("hf", str(user_path(source)))
    return found


def builtin_mistakes(given: str | None, names: Sequence[str], what: str) -> Iterator[str]:
    """Yield a message if a source is invalid or is an unknown built-in source."""
    try:
        found = parse_source(given or "")
        if found.kind == "builtin":
            check_builtin(found, names, what)
    except ValueError as error:
        yield str(error)


def check_builtin(source: Source, names: Sequence[str], what: str) -> None:
    if source.name not in names:
        known = ", ".join(f"builtin:{name}" for name in names)
        raise ValueError(f"unknown built-in {what} {str(source)!r}. Known: {known}")


def check_two_sources(config: Any) -> None:
    """Raise ValueError if the training source is also the validation source."""
    if config.validation_source == config.source:
        raise ValueError(f"{config.source} is the source of the training data and of the "
                         "validation data: omit the validation source")  # fmt: skip


def hub_files(source: Source) -> list[Path]:
    """Return the files of a local data set, or [] for a data set on the hub."""
    path = Path(source.name)
    return sorted(walk_files(path)) if os.path.isdir(path) else [path] * os.path.isfile(path)


def hub_is_reachable() -> bool:
    if getproxies():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


class HubDataset:
    """A data set of the Hugging Face hub, or a local folder of the same layout.

    If loading fails, methods raise `ConfigError` with a message of one line. If the package
    `datasets` is missing, a ModuleNotFoundError names the extra to install.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        if not os.path.exists(source.name) and not hub_is_reachable():
            # Otherwise the library retries five times, for half a minute, before its local cache.
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self.library = import_extra(
            "datasets", "hf", "Parquet files and sources hf:NAME need the package datasets"
        )

    def configs(self) -> list[str]:
        if self.source.config or self.source.name.endswith(".parquet"):
            return [self.source.config]
        with self._loading():
            return self.library.get_dataset_config_names(self.source.name)

    def splits(self, config: str) -> list[str]:
        if self.source.name.endswith(".parquet"):
            return ["train"]
        with self._loading():
            return self.library.get_dataset_split_names(self.source.name, config or None)

    def chosen_splits(
        self, config: str, names: Mapping[str, Sequence[str]] = SPLIT_NAMES
    ) -> dict[str, str]:
        """Return the data set's own names of the splits "train", "validation" and "test".

        If the source is hf:NAME:CONFIG:SPLIT, this split is used as "train". If no split has a
        usual name, the first split is used as "train". `names` has the accepted names of each
        split, in order of preference.
        """
        if self.source.split:
            return {"train": self.source.split}
        given = self.splits(config)
        found = standard_splits({name.lower(): name for name in given}, names)
        return found or {"train": given[0]}

    def stream(self, config: str, split: str) -> Iterator[Any]:
        rows = self.load(config, split, streaming=True)
        with self._loading():
            yield from rows

    def load(self, config: str, split: str | None, streaming: bool = False) -> Any:
        name, files = self.source.name, None
        if name.endswith(".parquet"):
            name, files = "parquet", name
        with self._loading():
            return self.library.load_dataset(
                name, config or None, split=split, streaming=streaming, data_files=files
            )

    @contextmanager
    def _loading(self) -> Iterator[None]:
        library = logging.getLogger("huggingface_hub")  # logs every retry
        before = library.level
        library.setLevel(logging.ERROR)
        try:
            yield
        except ModuleNotFoundError:
            raise
        except Exception as error:  # the library's message is in the cause
            first = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
            offline = "; without a connection, give a local data set (--data PATH)"
            hint = "" if os.path.exists(self.source.name) else offline
            raise ConfigError([f"cannot load {self.source} ({first}){hint}"]) from error
        finally:
            library.setLevel(before)
