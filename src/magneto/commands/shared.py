"""What commands share: options, dotted overrides, JSON, standard input in the place of a file."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NoReturn, TypeVar

from magneto.config import ELSEWHERE, ConfigError
from magneto.data.problems import INVALID_UTF8, Counts
from magneto.files import nearest_path, plain

STDIN = "-"
NAMES = (STDIN, "/dev/stdin")
# Bytes read at once, if so many are there; and how much of one line is kept.
PIECE = 1 << 18
LONGEST_LINE = 1 << 20
Number = TypeVar("Number", int, float)
EPILOG = """
Any field of a recipe can be set: --training.steps 200 --model.placement pre
--data X is --data.source X, --distributed X is
--training.distributed X, and --wandb is --training.tracker wandb.
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `ConfigError`s, one line each, with the nearest right option."""

    def __init__(
        self, command: str, description: str, example: str, *, recipe: bool = False
    ) -> None:
        super().__init__(
            prog=f"magneto {command}",
            description=description,
            epilog=(EPILOG if recipe else "") + f"\nexample:\n  {example}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.recipe = recipe

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print and exit for."""
        raise ConfigError([f"{message}; see {self.prog} --help"])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words that are all known options."""
        given, rest = self.parse_known_intermixed_args(words)
        if rest:
            kind = "unknown option" if rest[0].startswith("-") else "nothing is to be done with"
            self.error(f"{kind} {rest[0]}{self._hint(rest[0])}")
        return given

    def parse_with_overrides(
        self, words: Sequence[str]
    ) -> tuple[argparse.Namespace, dict[str, str]]:
        """Parse words; `--any.field value` (or `=value`) go into the second result."""
        overrides: dict[str, str] = {}
        own: list[str] = []
        queue = list(words)
        while queue:
            word = queue.pop(0)
            key, equals, value = word.removeprefix("--").partition("=")
            if not word.startswith("--") or not ("." in key or key in ("seed", "task")):
                own.append(word)
                continue
            if not equals:
                if not queue or queue[0].startswith("--"):
                    self.error(f"--{key} needs a value")
                value = queue.pop(0)
            overrides[key] = value
        given = self.parse(own)
        return given, overrides

    def _known(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def _hint(self, word: str) -> str:
        option = word.split("=")[0]
        near = get_close_matches(option, self._known(), n=1)
        if f"{option}s" in self._known():
            near = [f"{option}s"]  # a comparison's own option, which takes several
        elif self.recipe:
            word = option.removeprefix("--").replace("-", "_")
            known = _recipe_fields()
            field = known.get(word) or known.get(ELSEWHERE.get(word, ""))
            near = [field] if field else near
        return f"; did you mean {near[0]}?" if near else ""

    def with_json(self) -> Parser:
        """Add --json."""
        self.add_argument(
            "--json", action="store_true", help="print one JSON object on stdout, nothing else"
        )
        return self

    def with_run(self, kind: str = "") -> Parser:
        """Add the run, and which of its weights."""
        self.add_argument("run", type=Path, help=f"directory of a {kind}run")
        self.add_argument(
            "--weights", default="auto", help="best (default), final, averaged, last or a step"
        )
        return self

    def with_data(self) -> Parser:
        """Add --data."""
        self.add_argument(
            "--data", metavar="SOURCE", help="PATH, hf:NAME or builtin:NAME instead of the recipe's"
        )
        return self


def name_source(overrides: dict[str, Any], data: str | None) -> None:
    """Put what --data names in the place of the recipe's source.

    Raises:
        ConfigError: If --data.source names another one.
    """
    if data is None:
        return
    if overrides.setdefault("data.source", data) != data:
        raise ConfigError([f"--data {data} and --data.source {overrides['data.source']} are the "
                           "same field: give one of them"])  # fmt: skip


def _recipe_fields() -> dict[str, str]:
    """Return options of fields that most recipes have, by the fields' names and sections."""
    from magneto.nn.config import TransformerConfig
    from magneto.training.config import TrainingConfig

    found = {"model": "--model.FIELD", "training": "--training.FIELD"}
    for section, kind in (("model", TransformerConfig), ("training", TrainingConfig)):
        names = [field.name for field in fields(kind)]
        found |= {name: f"--{section}.{name}" for name in names if name not in found}
    return found


def print_json(value: Any) -> None:
    """Print one JSON object on stdout; what is not a finite number becomes null."""
    print(json.dumps(plain(value), default=str))


def answer(given: argparse.Namespace, value: Any, lines: Iterable[str]) -> int:
    """Print one JSON object if that is asked for, else lines for people; return the exit code."""
    if given.json:
        print_json(value)
        return 0
    for line in lines:
        print(line)
    return 0


def numbers(option: str, text: str, kind: type[Number] = int) -> list[Number]:
    """Read numbers with commas between them.

    Args:
        option: Whose they are.
        text: What is given.
        kind: `int` for whole numbers from 0 on, or `float`.

    Raises:
        ConfigError: If one is no such number or is there twice, or there is none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    whole = "whole numbers" if kind is int else "numbers"
    try:
        found = [kind(word) for word in words]
    except ValueError:
        found = []
    if not found or (kind is int and min(found) < 0):
        raise ConfigError([f"{option} takes {whole} with commas, such as 1,2, not {text!r}"])
    if twice := [word for word, value in zip(words, found, strict=True) if found.count(value) > 1]:
        raise ConfigError([f"{option} has one number twice: {', '.join(twice)}"])
    return found


def read_time(option: str, text: str) -> float:
    """Read a time such as "60s", "5m", "2h" or "90" (seconds), in seconds.

    Raises:
        ConfigError: If it is something else, or not above 0; names the option.
    """
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError([f"{option} takes a time such as 60s, 5m or 2h, not {text!r}"])
    return seconds


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in columns, the first one to the left."""
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(wide[0]), *map(str.rjust, line[1:], wide[1:])]) for line in lines
    )


def is_main_process() -> bool:
    """Return whether this process is the one that writes and talks."""
    return os.environ.get("RANK", "0") == "0"


def several_processes() -> bool:
    """Return whether torchrun started this process and others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_standard_input(name: str | Path) -> bool:
    """Return whether a name on the command line stands for standard input."""
    return str(name) in NAMES


def open_standard_input() -> BinaryIO:
    """Return the bytes of standard input.

    Raises:
        ConfigError: If it is closed.
    """
    if sys.stdin is None:
        raise ConfigError(["standard input must be open, or name a file"])
    return sys.stdin.buffer


def check_file(name: str, what: str) -> None:
    """Raise an error that names the nearest file, or says that it is a folder, if it is no file."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder: name a {what} in it")
    if not path.is_file():
        raise FileNotFoundError(f"no {what} {name}{nearest_path(path)}")


def read_input(path: Path) -> bytes:
    """Return the bytes of a file, or of standard input."""
    return open_standard_input().read() if is_standard_input(path) else path.read_bytes()


def decode_input(path: Path) -> Any:
    """Return the image in a file, or in standard input, decoded."""
    from magneto.vision.decoding import EncodedPicture, PixelPicture

    return PixelPicture(EncodedPicture(read_input(path)).pixels())


@contextmanager
def standard_input_as_file(first: bytes = b"", ending: str = "") -> Iterator[Path]:
    """Yield standard input as a file, which can be read more than once; it is gone afterwards.

    Args:
        first: What was read of it already.
        ending: Of the file's name; by default as the first bytes show, for tables and texts.

    Raises:
        ConfigError: If it is closed or empty; and in place of a ValueError that names the file.
    """
    source = open_standard_input()
    first = first or source.readline()
    if not first:
        raise ConfigError(["standard input (-) is empty"])
    with TemporaryDirectory() as folder:
        path = Path(folder, f"stdin{ending or ending_of(first)}")
        with path.open("wb") as file:
            file.write(first)
            shutil.copyfileobj(source, file)
        try:
            yield path
        except ValueError as error:
            said = str(error).replace(str(path), "standard input (-)")
            raise ConfigError(said.splitlines()) from error


def ending_of(line: bytes) -> str:
    """Return the ending of a table's or a text's name, by its first line."""
    if line.lstrip().startswith(b"{"):
        return ".jsonl"
    return ".tsv" if b"\t" in line else ".txt"


def arriving(source: Any, counts: Counts, most: int) -> Iterator[list[str]]:
    """Yield the lines that are there as texts, waiting only if there is none.

    Args:
        source: A stream of bytes with `read1`. Only line feeds end lines, a byte-order mark before
            the first is left out, and so is what follows the first mebibyte of a line.
        counts: Told of lines that are no UTF-8; U+FFFD stands for what is none.
        most: So many at once.
    """
    mark = BOM_UTF8
    for lines in _arriving_lines(source):
        lines[0], mark = lines[0].removeprefix(mark), b""
        for start in range(0, len(lines), most):
            yield [_decoded(line, counts) for line in lines[start : start + most]]


def _decoded(line: bytes, counts: Counts) -> str:
    line = line.removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        counts[INVALID_UTF8] += 1
        return line.decode("utf-8", errors="replace")


def _arriving_lines(source: Any) -> Iterator[list[bytes]]:
    held: list[bytes] = []
    size = 0
    while piece := source.read1(PIECE):
        first, *rest = piece.split(b"\n")
        if size < LONGEST_LINE:
            held.append(first)
            size += len(first)
        if rest:
            yield [b"".join(held), *rest[:-1]]
            held, size = ([rest[-1]], len(rest[-1])) if rest[-1] else ([], 0)
    if held:
        yield [b"".join(held)]
