"""Names of sources: PATH, hf:NAME[:CONFIG[:SPLIT]] or builtin:NAME; and data sets of the hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from magneto.config import ConfigError
from magneto.data.files import walk_files
from magneto.files import import_extra


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


def check_builtin(source: Source, names: Sequence[str], what: str) -> None:
    """Raise ValueError if a built-in source is none of the names; lists them."""
    if source.name not in names:
        known = ", ".join(f"builtin:{name}" for name in names)
        raise ValueError(f"no built-in {what} {str(source)!r}: there is {known}")


def hub_files(source: Source) -> list[Path]:
    """List the files of a folder like a data set of the hub; none if it is on the hub itself."""
    folder = Path(source.name)
    return sorted(walk_files(folder)) if os.path.isdir(folder) else []


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
        self.library = import_extra("datasets", "hf", "hf: sources need datasets")

    def configs(self) -> list[str]:
        """List the names of its configurations: the one that the source names, if it does."""
        if self.source.config:
            return [self.source.config]
        with self._loading():
            return self.library.get_dataset_config_names(self.source.name)

    def splits(self, config: str) -> list[str]:
        """List the names of a configuration's splits; "" is the only configuration."""
        with self._loading():
            return self.library.get_dataset_split_names(self.source.name, config or None)

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
        except (OSError, ValueError, RuntimeError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            line = f"cannot load {self.source} ({first}); offline, give --data PATH"
            raise ConfigError([line]) from error
        finally:
            library.setLevel(before)
