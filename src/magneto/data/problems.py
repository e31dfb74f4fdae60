"""What was wrong with examples: the first few are named, all are listed in a file of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from magneto.progress import SILENT, Progress

PROBLEMS_FILE = "data_problems.tsv"
"""In a run: a line per example, what it is, its name, and why."""

# Of a kind that are named, in each process.
FEW = 3
# Numbers of a kind that are told when they are reached.
TOLD = frozenset(10**power for power in range(1, 10))


class DataProblems:
    """Names examples with which something is wrong, each once.

    All processes that read a run's data (ranks, data workers, later evaluations) add to one file,
    and look into it before they do. Until a run is given, what is met is held and not said.
    """

    def __init__(self) -> None:
        self.progress: Progress = SILENT
        self._known: dict[str, None] = {}
        self._counts: Counter[str] = Counter()
        self._named: Counter[str] = Counter()
        self._told: set[tuple[str, int]] = set()
        self._file: Path | None = None
        self._read = 0

    def keep_in(self, run: Path, progress: Progress = SILENT) -> None:
        """List them in a run's directory from now on, with those that were met before.

        Args:
            run: The directory.
            progress: Told of the first few of each kind, and of round numbers; not of those that
                the run knows already.
        """
        held, self._known = list(self._known), {}
        self._counts, self._named, self._told = Counter(), Counter(), set()
        self._file, self._read, self.progress = run / PROBLEMS_FILE, 0, progress
        self._catch_up()
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
            self._catch_up()
            self._note([line])

    def describe(self) -> str:
        """Say how many of each kind are known, of all processes; "" if there are none."""
        self._catch_up()
        return "; ".join(f"{kind}: {count:,}" for kind, count in self._counts.most_common())

    def _place(self) -> str:
        return f" (listed in {self._file})" if self._file else ""

    def _note(self, lines: Sequence[str]) -> None:
        new = self._add(lines)
        if new and self._file is not None:
            self._append(new)
        for line in new:
            self._say(*line.split("\t"))

    def _add(self, lines: Sequence[str]) -> list[str]:
        new = [line for line in dict.fromkeys(lines) if line not in self._known]
        self._known.update(dict.fromkeys(new))
        self._counts.update(line.partition("\t")[0] for line in new)
        return new

    def _say(self, kind: str, name: str, why: str) -> None:
        self._named[kind] += 1
        if self._named[kind] <= FEW:
            more = f"; further ones are not named{self._place()}"
            self.progress.say(f"{kind}: {name} ({why}){more if self._named[kind] == FEW else ''}")
        elif (count := self._counts[kind]) in TOLD and (kind, count) not in self._told:
            self._told.add((kind, count))  # several at once are one number
            self.progress.say(f"{kind}: {count:,} so far{self._place()}")

    def _append(self, lines: Sequence[str]) -> None:
        assert self._file is not None
        try:
            # In one piece at the end of the file, whoever else writes there.
            with self._file.open("ab", buffering=0) as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:  # no reason to end a run
            self.progress.say(f"{self._file} can't be written ({error.strerror})")
            self._file = None

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
        self._add(whole.decode(errors="replace").splitlines())


def _one_cell(text: str) -> str:
    """Return text that is a cell of a line, in UTF-8 whatever it was."""
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(" " if c in "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029" else c for c in plain)
