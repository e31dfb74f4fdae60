"""Counts and reports of problems in data.

Reading a record may raise any error, even an error inside a library. A record that raises an error
is counted and skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from magneto.config import error_line
from magneto.progress import SILENT, Progress

# Number of examples that messages name for each kind of problem.
FEW = 3
# Longest list in a message.
LISTED = 32
# Kinds of problems in every field.
MALFORMED = "malformed records left out"
INVALID_UTF8 = "lines with invalid UTF-8 replaced"
# JSON can escape a lone surrogate (\ud83d), which UTF-8 and tokenizers can't represent.
HALF_CHARACTERS = "records with lone surrogates replaced"
LONG_LINES = "over-long lines left out"
NO_FILES = "pipes, devices, broken links and unreadable folders left out"
EMPTY = "empty texts left out"
OTHER_SPLITS = "rows of unknown splits left out"


def join_words(words: Sequence[Any], most: int = LISTED) -> str:
    """Join words or numbers with commas. With `most` = 2, five words give "a, b and 3 more"."""
    line = ", ".join(str(word) for word in words[:most])
    return f"{line} and {len(words) - most} more" if len(words) > most else line


def quantity(number: int, units: str) -> str:
    """Return a number and a unit as text.

    The first or second word of `units` is a plural. For example, the number 1 with the units "rows
    of a split" gives "1 row of a split".
    """
    words = units.split(" ")
    for place, word in enumerate(words[:2] if number == 1 else ()):
        if word.endswith("s") and len(word) > len("its"):
            words[place] = word.removesuffix("es" if word.endswith("sses") else "s")
            break
    return f"{number:,} {' '.join(words)}"


class Counts(Counter[str]):
    """Counts of problems by kind, where a kind is a phrase such as "malformed records left out".

    Attributes:
        named: Descriptions of the first problems of each kind.
    """

    def __init__(self, counts: Mapping[str, int] | Iterable[str] = ()) -> None:
        self.named: dict[str, list[str]] = {}
        super().__init__(counts)

    def update(self, counts: Any = (), /, **more: int) -> None:
        super().update(counts, **more)
        for kind, names in getattr(counts, "named", {}).items():
            self._name(kind, *names)

    def _name(self, kind: str, *names: str) -> None:
        known = self.named.get(kind, [])
        if len(known) < FEW:
            self.named[kind] = [*known, *names][:FEW]

    def plain(self) -> dict[str, Any]:
        return {"counts": dict(self), "named": self.named}

    @classmethod
    def of_plain(cls, values: Mapping[str, Any]) -> Counts:
        found = cls(values["counts"])
        found.named = {kind: list(names) for kind, names in values["named"].items()}
        return found

    def record(self, kind: str, where: str, why: str) -> None:
        """Count a problem. `where` is a file and line, and `why` is the reason."""
        self[kind] += 1
        self._name(kind, f"{where}: {why}")

    def describe(self, *units: str) -> str:
        """Return the counts of `units` as text, such as "9 rows (1 empty text left out)".

        Problems are in brackets, the most frequent kind first.
        """
        what = ", ".join(quantity(self[unit], unit) for unit in units)
        others = [(-count, kind) for kind, count in self.items() if count and kind not in units]
        problems = ", ".join(f"{quantity(-count, kind)}{self._names(kind)}"
                        for count, kind in sorted(others))  # fmt: skip
        return f"{what} ({problems})" if problems else what

    def _names(self, kind: str) -> str:
        names = self.named.get(kind, ())
        return f" [{'; '.join(names)}]" if names else ""

    def describe_amounts(self, amounts: Mapping[str, int]) -> str:
        both = Counts(self)
        for unit, amount in amounts.items():
            both[unit] = amount
        return both.describe(*amounts)


class StrictCounts(Counts):
    """Counter of problems in evaluation data, which raises ValueError at the first problem.

    A skipped example would change the scores of an evaluation.
    """

    def record(self, kind: str, where: str, why: str) -> None:
        raise ValueError(f"{where}: {why}")


PROBLEMS_FILE = "data_problems.tsv"
"""File in a run's directory. Each line has the kind, the example's name, and the reason."""

# Longest reason, in characters; reasons may quote the data.
LONGEST_REASON = 200

T = TypeVar("T")
R = TypeVar("R")


class BadRecord(ValueError):
    """Error for an unusable record. The message is one line."""


@contextmanager
def guarded(kind: type[BadRecord] = BadRecord, prefix: str = "") -> Iterator[None]:
    """Convert any error in the block to `kind`, with `prefix` before the message.

    A ModuleNotFoundError is raised unchanged.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as error:
        if isinstance(error, kind) and not prefix:
            raise
        raise kind(prefix + reason(error)) from error


def read_each(
    records: Iterable[T], read: Callable[[T], R | None], counts: Counts, where: str
) -> Iterator[R]:
    """Yield the result of `read` for each record; see `number_each`."""
    return (found for _, found in number_each(records, read, counts, where, count(1)))


def number_each(
    records: Iterable[T],
    read: Callable[[T], R | None],
    counts: Counts,
    where: str,
    numbers: Iterable[int],
) -> Iterator[tuple[int, R]]:
    """Yield the number of each record and the result of `read`.

    If `read` raises an error, the record is counted as malformed and skipped. If `read` returns
    None, the record is skipped and not counted. Messages name a record by `where` and its number,
    as in "a.jsonl, line 3". ModuleNotFoundError and errors of the iterator `records` are not
    caught.
    """
    for record, number in zip(records, numbers, strict=False):
        try:
            found = read(record)
        except ModuleNotFoundError:
            raise
        except Exception as error:
            counts.record(MALFORMED, f"{where} {number}", reason(error))
        else:
            if found is not None:
                yield number, found


def reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"no field {error}"
    if isinstance(error, JSONDecodeError):
        return f"not JSON ({error.msg})"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    of_system = error.strerror if isinstance(error, OSError) else None
    line = f"can't be read ({of_system})" if of_system else error_line(error)
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}..."


class DataProblems:
    """List of examples with problems.

    All processes of a run append to one file, with one line per problem. Each problem is written
    only once. Before `write_to` is called, problems are kept in memory and not printed.
    """

    def __init__(self) -> None:
        self.progress: Progress = SILENT
        self._known: dict[str, None] = {}
        self._said: Counter[str] = Counter()
        self._file: Path | None = None
        self._read = 0

    def write_to(self, run: Path, progress: Progress = SILENT) -> None:
        """Write the recorded problems, and all later ones, to a file in a run's directory."""
        held, self._known, self._said = list(self._known), {}, Counter()
        self._file, self._read, self.progress = run / PROBLEMS_FILE, 0, progress
        self._note(held)

    def record(self, kind: str, name: str, why: str) -> None:
        """Record a problem of the example `name`, unless this problem is already recorded."""
        line = "\t".join(_one_cell(part) for part in (kind, name, why))
        if line not in self._known:
            self._note([line])

    def describe(self) -> str:
        """Return the number of problems of each kind over all processes, as text."""
        self._catch_up()
        counts = Counter(line.partition("\t")[0] for line in self._known)
        return "; ".join(f"{kind}: {count:,}" for kind, count in counts.most_common())

    def _note(self, lines: Sequence[str]) -> None:
        self._catch_up()
        new = [line for line in lines if line not in self._known]
        if self._file is not None and new:
            try:
                with self._file.open("ab", buffering=0) as file:
                    lock(file)
                    self._catch_up()
                    new = [line for line in new if line not in self._known]
                    file.write("".join(f"{line}\n" for line in new).encode())
            except OSError as error:  # does not end a run
                self.progress.say(f"{self._file} can't be written ({error.strerror})")
                self._file = None
        self._known.update(dict.fromkeys(new))
        for kind, name, why in (line.split("\t") for line in new):
            self._said[kind] += 1
            if self._said[kind] <= FEW:
                place = f", but listed in {self._file}" if self._file else ""
                more = f"; further examples are not printed{place}" * (self._said[kind] == FEW)
                self.progress.say(f"{kind}: {name} ({why}){more}")

    def _catch_up(self) -> None:
        if self._file is None:
            return
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        self._known.update(dict.fromkeys(whole.decode(errors="replace").splitlines()))


def lock(file: BinaryIO) -> None:
    """Wait for an exclusive lock on a file. The lock lasts until the file is closed."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _one_cell(text: str) -> str:
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(" " if c in "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029" else c for c in plain)
