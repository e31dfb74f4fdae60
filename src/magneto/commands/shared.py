"""Shared parts of the commands: options, output and standard input."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, BinaryIO, NoReturn

from annotated_types import MinLen

from magneto.config import FOREIGN_NAMES, ConfigError
from magneto.data.files import existing_path
from magneto.data.problems import INVALID_UTF8, Counts
from magneto.fields import NonNegativeInt, PositiveFloat, PositiveInt, read_text
from magneto.files import plain

STDIN = "-"
# Maximum bytes of one read, and of one line.
READ_BYTES = 1 << 18
LONGEST_LINE = 1 << 20
RECIPE_EPILOG = """
Every field of the recipe is an option, such as --training.steps 200.
`magneto recipes RECIPE --all` lists the fields.
"""
DESCRIPTION_WIDTH = 80


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `ConfigError` and suggests the nearest option."""

    def __init__(
        self, command: str, description: str, example: str, *, recipe: bool = False
    ) -> None:
        super().__init__(
            prog=f"magneto {command}",
            description="\n\n".join(
                fill(paragraph, DESCRIPTION_WIDTH) for paragraph in description.split("\n\n")
            ),
            epilog=(RECIPE_EPILOG if recipe else "") + f"\nexample:\n  {example}\n",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.recipe = recipe
        self.data_is_source = False  # whether --data sets data.source

    def error(self, message: str) -> NoReturn:
        raise ConfigError([f"{message}; see {self.prog} --help"])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        args, rest = self.parse_known_intermixed_args(words)
        if rest:
            kind = "unknown option" if rest[0].startswith("-") else "unexpected argument"
            self.error(f"{kind} {rest[0]}{self._hint(rest[0])}")
        return args

    def parse_with_overrides(
        self, words: Sequence[str]
    ) -> tuple[argparse.Namespace, dict[str, str]]:
        """Return a command's options, and the values of recipe fields by dotted name.

        Fields are set by `--a.field value` and `--a.field=value`. The options --seed and --task
        also set fields. If `with_data` was called, --data sets `data.source`.
        """
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
        args = self.parse(own)
        data = args.data if self.data_is_source else None
        if data is not None and overrides.setdefault("data.source", data) != data:
            raise ConfigError([f"--data {data} and --data.source {overrides['data.source']} set "
                               "the same field; give one of them"])  # fmt: skip
        return args, overrides

    def _hint(self, word: str) -> str:
        option = word.split("=")[0]
        known_options = [name for action in self._actions for name in action.option_strings]
        near = get_close_matches(option, known_options, n=1)
        if f"{option}s" in known_options:
            near = [f"{option}s"]  # --lr for --lrs
        elif self.recipe:
            word = option.removeprefix("--").replace("-", "_")
            known = _recipe_fields()
            field = known.get(word) or known.get(FOREIGN_NAMES.get(word, ""))
            near = [field] if field else near
        return f"; did you mean {near[0]}?" if near else ""

    def with_json(self) -> Parser:
        what = "print the result as one JSON object"
        self.add_argument("--json", action="store_true", help=what)
        return self

    def with_run(self, kind: str = "") -> Parser:
        self.add_argument("run", type=Path, help=f"directory of a {kind}run")
        what = "best, final, averaged, last or a step number (default: best, else final, else last)"
        self.add_argument("--weights", default="auto", metavar="NAME", help=what)
        return self

    def with_data(self) -> Parser:
        self.data_is_source = True
        what = "PATH, hf:NAME or builtin:NAME (default: the recipe's data.source)"
        self.add_argument("--data", metavar="SOURCE", help=what)
        return self


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows the type and the default of each option."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        by_type = {int: "N", at_least_one: "N", float: "X", above_zero: "X", Path: "DIR"}
        return by_type.get(action.type) or super()._get_default_metavar_for_optional(action)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.nargs != 0 and action.default not in (None, "", [])
        if has_default and "(default" not in (action.help or ""):
            return super()._get_help_string(action)
        return action.help


def read_as(hint: Any) -> Callable[[str], Any]:
    """Return an argparse `type` for values of the type `hint`.

    Values are checked as in a recipe. A list with a repeated value is an error.
    """

    def read(text: str) -> Any:
        try:
            value = read_text(hint, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if isinstance(value, tuple) and len({*value}) < len(value):
            raise argparse.ArgumentTypeError(f"repeats a value: {text}")
        return value

    return read


# Types of options.
at_least_one = read_as(PositiveInt)
above_zero = read_as(PositiveFloat)
names = read_as(Annotated[tuple[str, ...], MinLen(1)])
whole_numbers = read_as(Annotated[tuple[NonNegativeInt, ...], MinLen(1)])
rates = read_as(Annotated[tuple[PositiveFloat, ...], MinLen(1)])


def sizes(text: str) -> list[int]:
    found = sorted(read_as(tuple[PositiveInt, ...])(text))
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"must be two or more positive numbers, not {text!r}")
    return found


def duration(text: str) -> float:
    """Convert "60s", "5m", "2h" or "90" to seconds."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    with suppress(ValueError):
        seconds = float(text[:-1]) * unit if unit else float(text)
        if 0 < seconds < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"must be a duration such as 60s, 5m or 2h, not {text!r}")


def _recipe_fields() -> dict[str, str]:
    from magneto.nn.config import TransformerConfig
    from magneto.training.config import TrainingConfig

    found = {"model": "--model.FIELD", "training": "--training.FIELD"}
    for section, kind in (("model", TransformerConfig), ("training", TrainingConfig)):
        names = [field.name for field in fields(kind)]
        found |= {name: f"--{section}.{name}" for name in names if name not in found}
    return found


def answer(args: argparse.Namespace, value: Any, lines: Iterable[str]) -> int:
    """Print `value` as JSON if --json is given, and `lines` if not. Return exit code 0.

    Numbers that are not finite become null. Only the main process prints.
    """
    if args.json and is_main_process():
        print(json.dumps(plain(value), default=str))
    elif is_main_process():
        for line in lines:
            print(line)
    return 0


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Format a table. The first column is left-aligned, the others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
        for first, *others in lines
    )


def is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def is_standard_input(name: str | Path) -> bool:
    return str(name) == STDIN


def open_standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise ConfigError(["standard input is closed; name a file"])
    return sys.stdin.buffer


def check_file(name: str, what: str) -> Path:
    path = existing_path(name)
    if path.is_dir():
        raise ValueError(f"{name} is a folder; name a {what} in it")
    return path


def check_folder(option: str, folder: Path | None) -> None:
    """Raise ConfigError if `folder` can't be written to, or is missing and can't be created."""
    if folder is None:
        return
    above = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if not above.is_dir():
        raise ConfigError([f"{option}: {above} is a file; name a folder"])
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError([f"{option}: no permission to write in {above}"])


def check_effect(words: Sequence[str], idle: Iterable[str], where: str) -> None:
    """Raise ConfigError if the command-line arguments `words` contain an option in `idle`.

    These options have no effect in the case `where`, such as "with --depths".
    """
    given = {word.partition("=")[0] for word in words}
    for option in idle:
        if f"--{option}" in given:
            raise ConfigError([f"--{option} has no effect {where}; omit it"])


def decode_input(path: Path) -> Any:
    from magneto.vision.decoding import EncodedPicture, PixelPicture

    encoded = open_standard_input().read() if is_standard_input(path) else path.read_bytes()
    return PixelPicture(EncodedPicture(encoded).pixels())


def arriving(source: Any, counts: Counts, most: int) -> Iterator[list[str]]:
    """Yield the available lines, in lists of at most `most` lines.

    If no line is available, the function waits.

    Only a line feed ends a line. A byte-order mark is dropped. A line is truncated after about
    1 MiB.
    Lines that are not UTF-8 are counted, and U+FFFD replaces the invalid bytes.
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
    begun: list[bytes] = []  # of a line whose end was not read yet
    size = 0
    while piece := source.read1(READ_BYTES):
        first, *rest = piece.split(b"\n")
        if size < LONGEST_LINE:
            begun.append(first)
            size += len(first)
        if rest:
            yield [b"".join(begun), *rest[:-1]]
            begun, size = ([rest[-1]], len(rest[-1])) if rest[-1] else ([], 0)
    if begun:
        yield [b"".join(begun)]
