"""What is odd in data: how often each kind was met, and the guard that every record goes through.

Reading may raise anything: a number that is no number, a name that no file can have, an object that
is nested too deeply, a library that asserts. None of it ends a run: it is counted, and the first
few are named. Nothing is left out in silence. What is wrong with examples is listed in a file of
the run too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from magneto.config import error_line
from magneto.progress import SILENT, Progress

# Of a kind that are named.
FEW = 3
# Examples, or columns, that a message names.
LISTED = 32
# Kinds that readers of every field meet.
MALFORMED = "malformed records left out"
INVALID_UTF8 = "lines with invalid UTF-8 replaced"
# JSON can spell half of a character (\ud83d), which UTF-8 and tokenizers can't.
HALF_CHARACTERS = "records with halves of a character replaced"
LONG_LINES = "over-long lines left out"
NO_FILES = "pipes, devices, broken links and unreadable folders left out"
EMPTY = "empty texts left out"
OTHER_SPLITS = "rows of a split that is none of train, validation and test left out"


def listed(words: Sequence[Any], most: int = LISTED) -> str:
    """Return words, or numbers, as one line; the first of many."""
    line = ", ".join(str(word) for word in words[:most])
    return f"{line} and {len(words) - most} more" if len(words) > most else line


def counted(number: int, units: str) -> str:
    """Return a number and what it is of, in the singular where it is one.

    Args:
        number: How many there are.
        units: In the plural, which one of the first two words has: "training rows of a split".
    """
    words = units.split(" ")
    for place, word in enumerate(words[:2] if number == 1 else ()):
        if word.endswith("s") and len(word) > len("its"):
            words[place] = word.removesuffix("es" if word.endswith("sses") else "s")
            break
    return f"{number:,} {' '.join(words)}"


class Counts(Counter[str]):
    """Numbers by kind, where a kind is the words that describe it. A kind not met has 0.

    They add up by `update`. As JSON they are numbers alone; `plain` keeps the names too.

    Attributes:
        named: The first few of a kind, where they are and what is wrong with them.
    """

    def __init__(self, counts: Mapping[str, int] | Iterable[str] = ()) -> None:
        self.named: dict[str, list[str]] = {}
        super().__init__(counts)

    def update(self, counts: Any = (), /, **more: int) -> None:
        """Add other counts, or one for each kind in a series of them."""
        super().update(counts, **more)
        for kind, names in getattr(counts, "named", {}).items():
            self._name(kind, *names)

    def _name(self, kind: str, *names: str) -> None:
        known = self.named.get(kind, [])
        if len(known) < FEW:
            self.named[kind] = [*known, *names][:FEW]

    def plain(self) -> dict[str, Any]:
        """Return numbers and names as plain values, of which `of_plain` makes them again."""
        return {"counts": dict(self), "named": self.named}

    @classmethod
    def of_plain(cls, values: Mapping[str, Any]) -> Counts:
        """Return the counts that `plain` gave."""
        found = cls(values["counts"])
        found.named = {kind: list(names) for kind, names in values["named"].items()}
        return found

    def met(self, kind: str, where: str, why: str) -> None:
        """Count something that is wrong.

        Args:
            kind: What it counts as.
            where: File and line, for a person.
            why: What is wrong with it.
        """
        self[kind] += 1
        self._name(kind, f"{where}: {why}")

    def describe(self, *units: str) -> str:
        """Say how many of the units there are, and in brackets all else, most frequent first."""
        what = ", ".join(counted(self[unit], unit) for unit in units)
        others = [(-count, kind) for kind, count in self.items() if count and kind not in units]
        odd = ", ".join(f"{counted(-count, kind)}{self._names(kind)}"
                        for count, kind in sorted(others))  # fmt: skip
        return f"{what} ({odd})" if odd else what

    def _names(self, kind: str) -> str:
        names = self.named.get(kind, ())
        return f" [{'; '.join(names)}]" if names else ""

    def beside(self, amounts: Mapping[str, int]) -> str:
        """Say how many of each unit there are, and in brackets what was counted."""
        both = Counts(self)
        for unit, amount in amounts.items():
            both[unit] = amount
        return both.describe(*amounts)


class NothingWrong(Counts):
    """Counts of a set to score on: to leave out a record would change the score."""

    def met(self, kind: str, where: str, why: str) -> None:
        """Raise ValueError with the place and what is wrong there."""
        raise ValueError(f"{where}: {why}")


PROBLEMS_FILE = "data_problems.tsv"
"""In a run: a line per example, what it is, its name, and why."""

# A longer reason is cut: it may hold what is wrong.
LONGEST_REASON = 200

T = TypeVar("T")
R = TypeVar("R")


class BadRecord(ValueError):
    """A record from outside that can't be used, and why, in one line."""


@contextmanager
def guarded(kind: type[BadRecord] = BadRecord, prefix: str = "") -> Iterator[None]:
    """Let whatever the reading of a record raises come out as one kind of error.

    A package that is not installed is no fault of the record, and is raised as it is.

    Args:
        kind: The error.
        prefix: What the reason begins with.

    Raises:
        BadRecord: Of this kind.
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
    records: Iterable[T],
    read: Callable[[T], R | None],
    counts: Counts,
    where: str,
    first: int = 1,
) -> Iterator[R]:
    """Yield what is read of each record; what can't be read is counted as malformed, and named.

    Args:
        records: Each may raise only what ends the whole source.
        read: Of a record; may raise anything. None is nothing, and not counted.
        counts: Is added to.
        where: What a record's number stands behind: "a.jsonl, line".
        first: Number of the first.
    """
    for number, record in enumerate(records, first):
        try:
            found = read(record)
        except ModuleNotFoundError:
            raise
        except Exception as error:
            counts.met(MALFORMED, f"{where} {number}", reason(error))
        else:
            if found is not None:
                yield found


def reason(error: Exception) -> str:
    """Return what an error says of a record, as a short line."""
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
    """Names examples with which something is wrong, each once.

    All processes that read a run's data (ranks, data workers, later evaluations) add to one file,
    and look into it before they do. Until a run is given, what is met is held and not said.
    """

    def __init__(self) -> None:
        self.progress: Progress = SILENT
        self._known: dict[str, None] = {}
        self._said: Counter[str] = Counter()
        self._file: Path | None = None
        self._read = 0

    def keep_in(self, run: Path, progress: Progress = SILENT) -> None:
        """List them in a run's directory from now on, with those that were met before.

        Args:
            run: The directory.
            progress: Told of the first few of each kind; not of those that the run knows already.
        """
        held, self._known, self._said = list(self._known), {}, Counter()
        self._file, self._read, self.progress = run / PROBLEMS_FILE, 0, progress
        self._note(held)

    def met(self, kind: str, name: str, why: str) -> None:
        """Note an example, unless it is known.

        Args:
            kind: What is wrong, in words.
            name: Of the example.
            why: What exactly.
        """
        line = "\t".join(_one_cell(part) for part in (kind, name, why))
        if line not in self._known:
            self._note([line])

    def describe(self) -> str:
        """Say how many of each kind are known, of all processes; "" if there are none."""
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
            except OSError as error:  # no reason to end a run
                self.progress.say(f"{self._file} can't be written ({error.strerror})")
                self._file = None
        self._known.update(dict.fromkeys(new))
        for kind, name, why in (line.split("\t") for line in new):
            self._said[kind] += 1
            if self._said[kind] <= FEW:
                place = f" (listed in {self._file})" if self._file else ""
                more = f"; further ones are not named{place}" * (self._said[kind] == FEW)
                self.progress.say(f"{kind}: {name} ({why}){more}")

    def _catch_up(self) -> None:
        """Read what other processes have written since."""
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
    """Wait until no other process has a file locked, and lock it until it is closed.

    Where the system or its file system has no such locks, two processes may write the same line.
    """
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def _one_cell(text: str) -> str:
    """Return text that is a cell of a line, in UTF-8 whatever it was."""
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(" " if c in "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029" else c for c in plain)
