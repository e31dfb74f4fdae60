"""What was wrong with images: the first few are named, all are listed in a file of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from magneto.progress import SILENT, Progress

FILE = "image_problems.tsv"
"""In a run: a line per image, what it is, its name, and why."""
BROKEN = "broken image"
BY_PILLOW = "JPEG decoded by Pillow, since simplejpeg refuses it"

# Of a kind that are named, in each process.
FEW = 3
# Numbers of a kind that are told when they are reached.
TOLD = tuple(10**power for power in range(1, 10))


class ImageProblems:
    """Names images with which something is wrong, each once.

    All processes that read a run's images (ranks, data workers, evaluations) add to one file, and
    look into it before they do.

    Args:
        progress: Told of the first few of each kind, and of round numbers.
    """

    def __init__(self, progress: Progress = SILENT) -> None:
        self.progress = progress
        self._known: dict[str, None] = {}
        self._named: Counter[str] = Counter()
        self._file: Path | None = None
        self._read = 0

    def keep_in(self, run: Path) -> None:
        """List them in a run's directory from now on, with those that were met before."""
        held, self._known = list(self._known), {}
        self._file, self._read = run / FILE, 0
        self._catch_up()
        self._append([line for line in held if line not in self._known])

    def met(self, kind: str, name: str, why: str) -> None:
        """Note an image, unless it is known.

        Args:
            kind: What is wrong, in words.
            name: Of the image.
            why: What exactly.
        """
        line = "\t".join(_one_cell(part) for part in (kind, name, why))
        if line not in self._known:
            self._catch_up()
        if line in self._known:
            return
        self._append([line])
        self._say(kind, name, why)

    def counts(self) -> Counter[str]:
        """Return how many images of each kind are known, those of other processes too."""
        self._catch_up()
        return Counter(line.partition("\t")[0] for line in self._known)

    def _say(self, kind: str, name: str, why: str) -> None:
        self._named[kind] += 1
        place = f"are listed in {self._file}" if self._file else "are not named"
        if self._named[kind] <= FEW:
            last = f"; further ones {place}" if self._named[kind] == FEW else ""
            self.progress.say(f"{kind}: {name} ({why}){last}")
        elif (count := self.counts()[kind]) in TOLD:
            self.progress.say(f"{kind}: {count:,} so far, which {place}")

    def _append(self, lines: Sequence[str]) -> None:
        self._known.update(dict.fromkeys(lines))
        if self._file is None or not lines:
            return
        try:
            # In one piece at the end of the file, whoever else writes there.
            with self._file.open("ab", buffering=0) as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:  # no reason to end a run
            self.progress.say(f"{self._file} can't be written ({error.strerror})")
            self._file = None

    def _catch_up(self) -> None:
        """Read what other processes have written since."""
        self._known.update(dict.fromkeys(self._new_lines()))

    def _new_lines(self) -> Iterator[str]:
        try:
            with open(self._file or "", "rb") as file:
                file.seek(self._read)
                content = file.read()
        except OSError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        yield from whole.decode(errors="replace").splitlines()


def _one_cell(text: str) -> str:
    """Return text that is a cell of a line, in UTF-8 whatever it was."""
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(" " if c in "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029" else c for c in plain)
