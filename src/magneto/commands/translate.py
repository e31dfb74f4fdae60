"""`magneto translate`: translate lines as they come."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from magneto.commands.shared import (
    STDIN,
    Parser,
    arriving,
    finite,
    is_standard_input,
    open_standard_input,
)
from magneto.files import nearest_path
from magneto.progress import ProgressBars
from magneto.runs import OpenRun, load_run, run_task
from magneto.training.assets import ASSETS

if TYPE_CHECKING:
    from magneto.translation.translator import TextTranslator, Translated

# Batches that are sorted by length together, before any of them is printed.
SORTED_BATCHES = 16


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "translate",
        "Translate the lines of a file, or of standard input: as many lines come out, in order.",
        "magneto translate runs/first --to de < in.txt > out.txt",
        recipe=True,
    ).with_run("translation ")
    add = made.add_argument
    add("file", nargs="?", default=STDIN, help="lines to translate; - for standard input (-)")
    add("--to", metavar="LANGUAGE", help="code of the language to translate into")
    add("--from", dest="source", metavar="LANGUAGE", help="and from; only checked")
    add("--n-best", type=int, metavar="K", help="K lines each: line number, score, translation")
    search_options(made)
    add("--json", action="store_true", help="print one JSON object per line, with scores")
    return made


def search_options(made: Any) -> None:
    """Add what a beam search can be told."""
    add = made.add_argument
    add("--beams", type=int, default=5, help="hypotheses at each step (5)")
    add("--length-penalty", type=float, default=1.0, help="power of the length (1.0)")
    add("--longest", type=int, default=200, help="tokens of a translation at most (200)")
    add("--batch-size", type=int, default=64, help="sentences at a time (64)")


def search_of(given: Any, count: int = 1) -> Any:
    """Return the `magneto.hf.BeamSearch` that was asked for."""
    from magneto.hf import BeamSearch

    return BeamSearch(
        beams=given.beams,
        length_penalty=given.length_penalty,
        count=count,
        longest=given.longest,
        batch_size=given.batch_size,
    )


def open_translation(run: Path, which: str, overrides: dict[str, Any]) -> OpenRun:
    """Open a translation run without its data: vocabulary and weights are enough.

    Raises:
        ConfigError: If it is another kind of run.
        FileNotFoundError: If there is no run, or nothing in it yet.
    """
    run_task(run, overrides, "translate")
    if not (run / ASSETS).is_dir():
        raise FileNotFoundError(f"no vocabulary in {run}: nothing was trained there yet")
    return load_run(run, which, overrides)


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    if given.n_best is not None and not 1 <= given.n_best <= given.beams:
        made.error(f"--n-best {given.n_best}: 1 to --beams ({given.beams})")
    if sys.stdout is None or (is_standard_input(given.file) and sys.stdin is None):
        made.error("standard input and output must be open: ... < in.txt > out.txt")
    if not is_standard_input(given.file) and not Path(given.file).is_file():
        raise FileNotFoundError(f"no file {given.file}{nearest_path(Path(given.file))}")
    opened: Any = open_translation(given.run, given.weights, dict(overrides))
    vocabulary = opened.task.vocabulary
    if given.to is None:
        made.error(f"say which language to translate into: --to {'|'.join(vocabulary.languages)}")
    for language in (given.to, given.source):
        if language is not None:
            vocabulary.tag(language)
    how = search_of(given, given.n_best or 1)
    from magneto.translation.translator import TextTranslator

    translator = TextTranslator(opened.model, vocabulary, opened.recipe.data.max_length, how)
    lines = Lines(translator, given, ProgressBars())
    if is_standard_input(given.file):
        lines.run(open_standard_input(), sys.stdout.buffer)
    else:
        with open(given.file, "rb") as source:
            lines.run(source, sys.stdout.buffer)
    return 0


@dataclass
class LineCounts:
    """What was met in the lines."""

    lines: int = 0
    empty: int = 0
    invalid: int = 0
    cut: int = 0
    first_cut: int = 0

    def describe(self, limit: int) -> str:
        """Say in words what was odd."""
        odd = {
            "empty, left so": self.empty,
            "with invalid UTF-8 replaced": self.invalid,
            f"longer than {limit} tokens, translated up to there (first: line {self.first_cut})": (
                self.cut
            ),
        }
        words = [f"{count:,} {what}" for what, count in odd.items() if count]
        return f"{self.lines:,} lines" + "".join(f"; {each}" for each in words)


class Lines:
    """Translates lines of bytes, some at a time.

    Args:
        translator: Of the model.
        given: The command's options.
        report: Shows how far it is.
    """

    def __init__(self, translator: TextTranslator, given: Any, report: ProgressBars) -> None:
        self.translator, self.given, self.report = translator, given, report
        self.counts = LineCounts()

    def run(self, source: Any, target: IO[bytes]) -> None:
        """Translate all that comes; what is ready is written at once."""
        most = self.given.batch_size * SORTED_BATCHES
        try:
            for lines in arriving(source):
                if not self.counts.lines:
                    lines[0] = lines[0].removeprefix(BOM_UTF8)
                for start in range(0, len(lines), most):
                    texts = self._translated(lines[start : start + most])
                    target.write("".join(f"{text}\n" for text in texts).encode("utf-8"))
                    target.flush()
        finally:
            self.report.finish()
        self.report.say(self.counts.describe(self.translator.max_length))

    def _translated(self, lines: list[bytes]) -> Iterator[str]:
        from magneto.translation.translator import is_visible

        texts = [self._decoded(line) for line in lines]
        before, scored = self.counts.lines, self.given.json or self.given.n_best is not None

        def show(done: int) -> None:
            self.report.update("translating lines", before + done, None)

        found = self.translator.translate(texts, self.given.to, scored, show)
        for text, each in zip(texts, found, strict=True):
            self.counts.lines += 1
            self.counts.empty += not is_visible(text)
            self.counts.cut += each.cut
            if each.cut and not self.counts.first_cut:
                self.counts.first_cut = self.counts.lines
            yield from self._shown(text, each)

    def _decoded(self, line: bytes) -> str:
        line = line.removesuffix(b"\r")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            self.counts.invalid += 1
            return line.decode("utf-8", errors="replace")

    def _shown(self, text: str, each: Translated) -> Iterator[str]:
        """Yield the lines that stand for one."""
        written = [" ".join(part.splitlines()) for part in each.texts]
        if self.given.json:
            pairs = zip(written, each.scores, strict=True)
            best = [{"text": part, "score": score} for part, score in pairs]
            record = {"line": self.counts.lines, "source": text, "translations": best}
            yield json.dumps(finite(record), ensure_ascii=False)
        elif self.given.n_best is not None:
            for part, score in zip(written, each.scores, strict=True):
                yield f"{self.counts.lines}\t{score:.4f}\t{part}"
        else:
            yield written[0]
