"""`magneto translate`: translation of lines as they arrive."""

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
    read_as,
)
from magneto.data.problems import Counts
from magneto.files import plain
from magneto.nn.config import BEAMS, Beams, Width
from magneto.progress import ProgressBars
from magneto.runs import load_run, run_task

if TYPE_CHECKING:
    from magneto.translation.task import TextTranslator, TranslationResult

# Batches whose lines are sorted by length together.
SORTED_BATCHES = 16
LINES = "lines"


def parser() -> Parser:
    made = Parser(
        "translate",
        "Translate the lines of a file or of standard input. Print one translation per line.",
        "magneto translate runs/first --to de < in.txt > out.txt",
        recipe=True,
    ).with_run("translation ")
    add = made.add_argument
    what = "file with one text per line (default: standard input)"
    add("file", nargs="?", default=STDIN, help=what)
    add("--to", metavar="LANGUAGE", help="code of the target language")
    what = "print K translations per line, with line number and score"
    add("--n-best", type=int, metavar="K", help=what)
    search_options(made)
    add("--json", action="store_true", help="print one JSON object per line, with scores")
    return made


def search_options(made: Any) -> None:
    add = made.add_argument
    add("--beams", type=read_as(Beams), default=BEAMS, metavar="N", help="beam width")
    what = "score = log-probability / length ** X"
    add("--length-penalty", type=float, default=1, help=what)
    what = "maximum number of tokens of a translation"
    add("--longest", type=read_as(Width), default=200, metavar="N", help=what)
    add("--batch-size", type=read_as(Width), default=64, metavar="N", help="sentences per batch")


def search_of(args: Any, count: int = 1) -> Any:
    from magneto.hf import BeamSearch

    return BeamSearch(
        beams=args.beams,
        length_penalty=args.length_penalty,
        count=count,
        longest=args.longest,
        batch_size=args.batch_size,
    )


def main(words: Sequence[str]) -> int:
    made = parser()
    args, overrides = made.parse_with_overrides(words)
    piped = is_standard_input(args.file)
    if args.n_best is not None and not 1 <= args.n_best <= args.beams:
        made.error(f"--n-best must be 1 to --beams ({args.beams}), not {args.n_best}")
    if sys.stdout is None:
        made.error("standard output is closed")
    path = None if piped else check_file(args.file, "file")
    run_task(args.run, overrides, "translate")
    opened: Any = load_run(args.run, args.weights, overrides)
    vocabulary = opened.task.vocabulary
    if args.to is None:
        made.error(f"give the target language: --to {'|'.join(vocabulary.languages)}")
    vocabulary.tag(args.to)
    how = search_of(args, args.n_best or 1)
    from magneto.translation.task import TextTranslator

    translator = TextTranslator(opened.model, vocabulary, opened.recipe.data.max_length, how)
    with path.open("rb") if path else nullcontext(open_standard_input()) as source:
        translate_lines(translator, args, ProgressBars(), source, sys.stdout.buffer)
    return 0


def translate_lines(
    translator: TextTranslator, args: Any, progress: ProgressBars, source: Any, target: IO[bytes]
) -> None:
    from magneto.translation.task import is_visible

    counts, most = Counts(), args.batch_size * SORTED_BATCHES
    too_long = f"truncated to {translator.max_length} tokens"

    def show(done: int) -> None:
        progress.update("translating lines", counts[LINES] + done, None)

    try:
        for texts in arriving(source, counts, most):
            scored = args.json or args.n_best is not None
            found = translator.translate(texts, args.to, scored, show)
            for text, each in zip(texts, found, strict=True):
                counts[LINES] += 1
                counts["empty"] += not is_visible(text)
                if each.truncated:
                    counts.record(too_long, f"line {counts[LINES]}", "the rest is ignored")
                target.write(output_lines(args, counts[LINES], text, each).encode("utf-8"))
            target.flush()
    finally:
        progress.finish()
    progress.say(counts.describe(LINES))


def output_lines(args: Any, number: int, text: str, found: TranslationResult) -> str:
    made = [" ".join(each.splitlines()) for each in found.texts]
    if args.json:
        best = [{"text": each, "score": score}
                for each, score in zip(made, found.scores, strict=True)]  # fmt: skip
        record = {"line": number, "source": text, "translations": best}
        return json.dumps(plain(record), ensure_ascii=False) + "\n"
    if args.n_best is not None:
        scored = zip(made, found.scores, strict=True)
        return "".join(f"{number}\t{score:.4f}\t{each}\n" for each, score in scored)
    return f"{made[0]}\n"
