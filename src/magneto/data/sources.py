"""Names of sources and splits, held-out examples, and data sets of the Hugging Face hub."""

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
from magneto.data.files import RECORDS, stream_records, unpacked_name, walk_files
from magneto.data.problems import OTHER_SPLITS, Counts
from magneto.files import import_extra, user_path

T = TypeVar("T")

# Names of splits in files and data sets, in order of preference.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
# Split by name.
SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}
# Splits of a validation source, in order of preference.
VALIDATION_ORDER = ("validation", "test", "train")
SPLIT_WORD = re.compile(rf"(?:^|[./_-])({'|'.join(SPLITS)})(?=$|[./_\d-])")


def standard_splits(
    values: Mapping[str, T], names: Mapping[str, Sequence[str]] = SPLIT_NAMES
) -> dict[str, T]:
    """Return values by standard split; the keys of `values` are lower-case names of splits."""
    found = {split: [values[word] for word in words if word in values]
             for split, words in names.items()}  # fmt: skip
    return {split: matches[0] for split, matches in found.items() if matches}


def hash_of(text: str) -> int:
    """Return a text's hash, an integer below 2^64 that is the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def held_out_limit(keys: Iterable[str], fraction: float) -> float:
    """Return the limit below which a key's hash must be for the key to be held out.

    The limit is `fraction` times 2^64, so that about this share of the keys is held out. If all or
    none of the keys were below this limit, the limit moves just past the nearest key. Reading stops
    after a key below and a key above the limit. If there is only one key, it is not held out.
    """
    limit, least, most = fraction * 2**64, 2**64, -1
    for place in map(hash_of, keys):
        least, most = min(least, place), max(most, place)
        if least < limit <= most:
            return limit
    return min(max(limit, least + 1), most)


def split_of(name: str) -> str | None:
    """Return the split of the last word such as "train" or "val" in a path; None without one."""
    found = SPLIT_WORD.findall(name.lower())
    return SPLITS[found[-1]] if found else None


def paths_by_split(paths: Iterable[Path], names: Iterable[str]) -> dict[str, list[Path]]:
    """Return paths by the split that their names contain; a name without a split is "train"."""
    parts: dict[str, list[Path]] = {}
    for path, name in zip(paths, names, strict=True):
        parts.setdefault(split_of(name) or "train", []).append(path)
    return parts


def split_of_record(record: Mapping[str, Any]) -> str | None:
    """Return the split in a record's field "split"; "train" without the field, None if unknown."""
    return SPLITS.get(str(record.get("split", "train")).strip().lower())


def in_split(record: Mapping[str, Any], split: str, counts: Counts) -> bool:
    """Return whether a record's field "split" is this split; every record belongs to split "".

    Records of unknown splits are counted while the training split is read.
    """
    own = split_of_record(record) if split else ""
    if own is None and split == "train":
        counts[OTHER_SPLITS] += 1
    return own == split


def named_splits(files: Iterable[Path]) -> set[str]:
    """Return the splits in the records' field "split"; none if no record has "train" there."""
    found: set[str | None] = set()
    for path in files:
        if unpacked_name(path).endswith(RECORDS):
            for record in stream_records(path, Counts()):
                if "split" not in record or {"train", "validation"} <= found:
                    break
                found.add(split_of_record(record))
    return {split for split in found if split} if "train" in found else set()


def held_out(text: str, fraction: float) -> bool:
    """Return whether an example is held out, by the hash of its text alone."""
    return hash_of(text) < fraction * 2**64


@dataclass(frozen=True)
class Source:
    """Source name, parsed.

    Attributes:
        kind: Kind of source.
        name: Path or name; for "hf" also a local data-set folder or .parquet file.
        config: Configuration of a hub data set; "" for none.
        split: Split of a hub data set; "" for none.
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
    """Parse a source name; raise ValueError if an "hf:" source has no name."""
    if source.startswith("builtin:"):
        return Source("builtin", source.removeprefix("builtin:"))
    if source.startswith("hf:"):
        found = Source("hf", *[*source.split(":"), "", ""][1:4])
        if not found.name.strip("/"):
            raise ValueError(f"{source!r} lacks a name: write hf:NAME[:CONFIG[:SPLIT]]")
        return found
    return Source("path", source)


def has_parquet(path: Path) -> bool:
    """Return whether a path is a .parquet file, or a folder with .parquet files at depth 1 or 2."""
    if not os.path.isdir(path):
        return path.suffix == ".parquet" and os.path.isfile(path)
    return any(path.glob("*.parquet")) or any(path.glob("*/*.parquet"))


def find_source(source: str) -> Source:
    """Parse a source name; Parquet files at a path become an "hf" source."""
    found = parse_source(source)
    if found.kind == "path" and has_parquet(user_path(source)):
        return Source("hf", str(user_path(source)))
    return found


def builtin_mistakes(given: str | None, names: Sequence[str], what: str) -> Iterator[str]:
    """Yield a message if a source name is invalid or names an unknown built-in source."""
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


def hub_files(source: Source) -> list[Path]:
    """Return the files of a local data set, or [] for a data set on the hub."""
    path = Path(source.name)
    return sorted(walk_files(path)) if os.path.isdir(path) else [path] * os.path.isfile(path)


def hub_is_reachable() -> bool:
    """Return whether the hub's host name can be resolved; with a proxy, return True."""
    if getproxies():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


class HubDataset:
    """A data set of the Hugging Face hub, or a local folder of the same layout.

    Methods raise `ConfigError` with one line if loading fails. Without `datasets`, a
    ModuleNotFoundError names the extra that installs it.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        if not os.path.exists(source.name) and not hub_is_reachable():
            # Otherwise the library retries five times, for half a minute, before its local cache.
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self.library = import_extra("datasets", "hf", "hf: sources need datasets")

    def configs(self) -> list[str]:
        """Return the names of the configurations, or the one in the source name."""
        if self.source.config or self.source.name.endswith(".parquet"):
            return [self.source.config]
        with self._loading():
            return self.library.get_dataset_config_names(self.source.name)

    def splits(self, config: str) -> list[str]:
        """Return the names of a configuration's splits; "" means the only configuration."""
        if self.source.name.endswith(".parquet"):
            return ["train"]
        with self._loading():
            return self.library.get_dataset_split_names(self.source.name, config or None)

    def chosen_splits(
        self, config: str, names: Mapping[str, Sequence[str]] = SPLIT_NAMES
    ) -> dict[str, str]:
        """Return the names of a configuration's splits by standard split.

        If the source name has a split, this split becomes "train". If no split has a standard name,
        the first split becomes "train". `names` are the accepted names, in order of preference.
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
        """Load a split, or all splits by name if `split` is None."""
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
