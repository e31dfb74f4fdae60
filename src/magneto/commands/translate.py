"""`magneto translate`: translate lines as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any

from magneto.commands.shared import (
    STDIN,
    Parser,
    arriving,
    check_file,
    is_standard_input,
    open_standard_input,
)
from magneto.data.problems import Counts
from magneto.files import plain
from magneto.progress import ProgressBars
from magneto.runs import load_run, run_task

if TYPE_CHECKING:
    from magneto.translation.translator import TextTranslator, TranslationResult

# Batches that are sorted by length together, before any of them is printed.
SORTED_BATCHES = 16
LINES = "lines"


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


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    piped = is_standard_input(given.file)
    if given.n_best is not None and not 1 <= given.n_best <= given.beams:
        made.error(f"--n-best {given.n_best}: 1 to --beams ({given.beams})")
    if sys.stdout is None or (piped and sys.stdin is None):
        made.error("standard input and output must be open: ... < in.txt > out.txt")
    if not piped:
        check_file(given.file, "file")
    run_task(given.run, overrides, "translate")
    from magneto.training.task import ASSETS

    if not (given.run / ASSETS).is_dir():
        raise FileNotFoundError(f"no vocabulary in {given.run}: nothing was trained there yet")
    opened: Any = load_run(given.run, given.weights, overrides)
    vocabulary = opened.task.vocabulary
    if given.to is None:
        made.error(f"say which language to translate into: --to {'|'.join(vocabulary.languages)}")
    vocabulary.tag(given.to)
    how = search_of(given, given.n_best or 1)
    from magneto.translation.translator import TextTranslator

    translator = TextTranslator(opened.model, vocabulary, opened.recipe.data.max_length, how)
    with nullcontext(open_standard_input()) if piped else open(given.file, "rb") as source:
        translate_lines(translator, given, ProgressBars(), source, sys.stdout.buffer)
    return 0


def translate_lines(
    translator: TextTranslator, given: Any, report: ProgressBars, source: Any, target: IO[bytes]
) -> None:
    """Translate all lines that come; what is ready is written at once.

    Args:
        translator: Of the model.
        given: The command's options.
        report: Shows how far it is; told what was odd.
        source: A stream of bytes with `read1`.
        target: Where translations are written.
    """
    from magneto.translation.translator import is_visible

    counts, most = Counts(), given.batch_size * SORTED_BATCHES
    too_long = f"longer than {translator.max_length} tokens, translated up to there"

    def show(done: int) -> None:
        report.update("translating lines", counts[LINES] + done, None)

    try:
        for texts in arriving(source, counts, most):
            scored = given.json or given.n_best is not None
            found = translator.translate(texts, given.to, scored, show)
            for text, each in zip(texts, found, strict=True):
                counts[LINES] += 1
                counts["empty, left so"] += not is_visible(text)
                if each.truncated:
                    counts.met(too_long, f"line {counts[LINES]}", "the rest is left out")
                target.write(written(given, counts[LINES], text, each).encode("utf-8"))
            target.flush()
    finally:
        report.finish()
    report.say(counts.describe(LINES))


def written(given: Any, number: int, text: str, found: TranslationResult) -> str:
    """Return the lines that stand for a line and its translations."""
    made = [" ".join(each.splitlines()) for each in found.texts]
    if given.json:
        best = [{"text": each, "score": score}
                for each, score in zip(made, found.scores, strict=True)]  # fmt: skip
        record = {"line": number, "source": text, "translations": best}
        return json.dumps(plain(record), ensure_ascii=False) + "\n"
    if given.n_best is not None:
        scored = zip(made, found.scores, strict=True)
        return "".join(f"{number}\t{score:.4f}\t{each}\n" for each, score in scored)
    return f"{made[0]}\n"
