"""Names of sources and of splits; data sets of the Hugging Face hub."""

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
from magneto.data.problems import Counts
from magneto.files import import_extra, user_path

T = TypeVar("T")

# Names of splits in files and data sets, best first.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
# And the split that a name stands for.
SPLITS = {name: split for split, names in SPLIT_NAMES.items() for name in names}
# In the order in which a source to validate on is looked through.
VALIDATED = ("validation", "test", "train")
SPLIT_WORD = re.compile(rf"(?:^|[./_-])({'|'.join(SPLITS)})(?=$|[./_\d-])")


def standard_splits(
    there: Mapping[str, T], names: Mapping[str, Sequence[str]] = SPLIT_NAMES
) -> dict[str, T]:
    """Return what stands for "train", "validation" and "test", as far as they are there.

    Args:
        there: Anything by its name, in lower case.
        names: Of the splits, best first, where a field has others.
    """
    found = {split: [there[word] for word in words if word in there]
             for split, words in names.items()}  # fmt: skip
    return {split: values[0] for split, values in found.items() if values}


def hash_of(text: str) -> int:
    """Return the hash of a text, from 0 to below 2^64: the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def held_below(keys: Iterable[str], fraction: float) -> float:
    """Return the limit below which the hashes of keys are held out.

    It is a share of all hashes, unless one side would have no key: then the key whose hash is
    nearest to it goes there. No more is read than it takes to know this; one key alone stays.

    Args:
        keys: In any order.
        fraction: Of the keys that are held out.
    """
    limit, least, most = fraction * 2**64, 2**64, -1
    for place in map(hash_of, keys):
        least, most = min(least, place), max(most, place)
        if least < limit <= most:
            return limit
    return min(max(limit, least + 1), most)


def split_of(name: str) -> str | None:
    """Return the split that the last such word in a name or a path stands for; None without one."""
    found = SPLIT_WORD.findall(name.lower())
    return SPLITS[found[-1]] if found else None


def split_of_record(record: Mapping[str, Any]) -> str | None:
    """Return the split that a record names in its field "split"; one without it is of "train"."""
    return SPLITS.get(str(record.get("split", "train")).strip().lower())


def named_splits(files: Iterable[Path]) -> set[str]:
    """Return the splits that the records of files name; none where none is of "train".

    No more is read than it takes to know whether there is a validation split.
    """
    found: set[str | None] = set()
    for path in files:
        if unpacked_name(path).endswith(RECORDS):
            for record in stream_records(path, Counts()):
                if "split" not in record or {"train", "validation"} <= found:
                    break
                found.add(split_of_record(record))
    return {split for split in found if split} if "train" in found else set()


def held_out(text: str, fraction: float) -> bool:
    """Return whether an example belongs to the validation split, by the hash of a text of it.

    The share that is held out never changes when examples are added.
    """
    return hash_of(text) < fraction * 2**64


@dataclass(frozen=True)
class Source:
    """A source's name, taken apart.

    Attributes:
        kind: Where it lies.
        name: Its path, or its name there; of "hf", a folder like a data set of the hub, or a
            .parquet file, too.
        config: Configuration of a data set of the hub; "" where none is named.
        split: Split of it; "" where none is named.
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
    """Take a source's name apart.

    Raises:
        ValueError: If it is of the hub and names nothing there.
    """
    if source.startswith("builtin:"):
        return Source("builtin", source.removeprefix("builtin:"))
    if source.startswith("hf:"):
        found = Source("hf", *[*source.split(":"), "", ""][1:4])
        if not found.name.strip("/"):
            raise ValueError(f"{source!r} names no data set: hf:NAME[:CONFIG[:SPLIT]]")
        return found
    return Source("path", source)


def has_parquet(path: Path) -> bool:
    """Return whether a path is a .parquet file, or a folder that has one, or whose folders do."""
    if not os.path.isdir(path):
        return path.suffix == ".parquet" and os.path.isfile(path)
    return any(path.glob("*.parquet")) or any(path.glob("*/*.parquet"))


def find_source(source: str) -> Source:
    """Take a source's name apart; Parquet files at a path are read as those of the hub are."""
    found = parse_source(source)
    if found.kind == "path" and has_parquet(user_path(source)):
        return Source("hf", str(user_path(source)))
    return found


def wrong_builtin(given: str | None, names: Sequence[str], what: str) -> Iterator[str]:
    """Yield a line if a source's name can't be read, or is of a built-in one that is not there."""
    try:
        found = parse_source(given or "")
        if found.kind == "builtin":
            check_builtin(found, names, what)
    except ValueError as error:
        yield str(error)


def check_builtin(source: Source, names: Sequence[str], what: str) -> None:
    """Raise ValueError if a built-in source is none of the names; lists them."""
    if source.name not in names:
        known = ", ".join(f"builtin:{name}" for name in names)
        raise ValueError(f"no built-in {what} {str(source)!r}: there is {known}")


def hub_files(source: Source) -> list[Path]:
    """List the files of a data set that lies here; none if it is on the hub itself."""
    path = Path(source.name)
    return sorted(walk_files(path)) if os.path.isdir(path) else [path] * os.path.isfile(path)


def hub_is_known() -> bool:
    """Return whether the hub's name has an address here; True where a proxy would know it."""
    if getproxies():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


class HubDataset:
    """A data set of the Hugging Face hub, or a folder like one.

    Every method raises `ConfigError` if it can't be loaded: one line that says why.

    Args:
        source: Of kind "hf".

    Raises:
        ModuleNotFoundError: If datasets is not installed; names the extra that has it.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        if not os.path.exists(source.name) and not hub_is_known():
            # Without it, the library asks five times, for half a minute, before it looks here.
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self.library = import_extra("datasets", "hf", "hf: sources need datasets")

    def configs(self) -> list[str]:
        """List the names of its configurations: the one that the source names, if it does."""
        if self.source.config or self.source.name.endswith(".parquet"):
            return [self.source.config]
        with self._loading():
            return self.library.get_dataset_config_names(self.source.name)

    def splits(self, config: str) -> list[str]:
        """List the names of a configuration's splits; "" is the only configuration."""
        if self.source.name.endswith(".parquet"):
            return ["train"]
        with self._loading():
            return self.library.get_dataset_split_names(self.source.name, config or None)

    def chosen_splits(
        self, config: str, names: Mapping[str, Sequence[str]] = SPLIT_NAMES
    ) -> dict[str, str]:
        """Return the names of a configuration's splits by what they stand for.

        A split that the source names is "train"; so is the first, where no name says what it is.

        Args:
            config: Name of the configuration; "" is the only one.
            names: Of the splits, best first, where a field has others.
        """
        if self.source.split:
            return {"train": self.source.split}
        there = self.splits(config)
        found = standard_splits({name.lower(): name for name in there}, names)
        return found or {"train": there[0]}

    def stream(self, config: str, split: str) -> Iterator[Any]:
        """Yield the rows of a split one by one, before all is there."""
        rows = self.load(config, split, streaming=True)
        with self._loading():
            yield from rows

    def load(self, config: str, split: str | None, streaming: bool = False) -> Any:
        """Load a split, or a mapping of all splits by name if `split` is None.

        Args:
            config: Name of the configuration; "" is the only one.
            split: Name of the split.
            streaming: Whether rows come one by one, before all is there.
        """
        name, files = self.source.name, None
        if name.endswith(".parquet"):
            name, files = "parquet", name
        with self._loading():
            return self.library.load_dataset(
                name, config or None, split=split, streaming=streaming, data_files=files
            )

    @contextmanager
    def _loading(self) -> Iterator[None]:
        library = logging.getLogger("huggingface_hub")  # tells of every retry
        before = library.level
        library.setLevel(logging.ERROR)
        try:
            yield
        except ModuleNotFoundError:
            raise
        except Exception as error:  # the libraries' own say what is wrong in what caused them
            first = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
            hint = "" if os.path.exists(self.source.name) else "; offline, give --data PATH"
            raise ConfigError([f"cannot load {self.source} ({first}){hint}"]) from error
        finally:
            library.setLevel(before)
