"""What `magneto evaluate` does for a translation run: translate, and score by BLEU and chrF."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from magneto.commands.shared import Parser, is_main_process, print_json
from magneto.commands.translate import search_of, search_options
from magneto.config import ConfigError
from magneto.data.counts import HALF_CHARACTERS, INVALID_UTF8, LONG_LINES, MALFORMED
from magneto.files import write_text
from magneto.progress import ProgressBars
from magneto.recipe import open_run
from magneto.runs import load_run, run_tokenizer
from magneto.translation.config import split_direction
from magneto.translation.references import ReferenceTexts, read_test_texts, read_validation_texts
from magneto.translation.scores import (
    Direction,
    TranslationScores,
    average_directions,
    signatures,
)
from magneto.translation.vocabulary import read_tags

COLUMNS = "  {:<22}{:>10}{:>8}{:>8}"


def add_options(made: Parser) -> None:
    """Add what belongs to a translation run."""
    group = made.add_argument_group("translation runs")
    group.add_argument(
        "--directions",
        metavar="A-B,C-D",
        help="instead of all that are trained; A>B where a code has a dash itself",
    )
    group.add_argument("--write", type=Path, metavar="DIR", help="keep the translations there")
    search_options(group)


def evaluate(given: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Run `magneto evaluate RUN` for a translation run.

    The loss is over sentences that pass the recipe's filters, of the same directions; translations
    are scored of all.
    """
    from magneto.translation.translator import TextTranslator, score_directions

    report, how = ProgressBars(quiet=not is_main_process()), search_of(given)
    directions = given.directions.split(",") if given.directions else None
    data = open_run(given.run, overrides).data
    if given.data:
        known = read_tags(Path(run_tokenizer(given.run)))
        texts = read_test_texts(given.data, data, known, directions, given.limit)
        names = (f"{a}>{b}" for a, b in texts.texts)
        overrides |= {"data.languages": ",".join(known), "data.directions": ",".join(names)}
    else:
        texts = chosen(read_validation_texts(data, given.limit), directions)
    # It translates them all itself.
    overrides |= {"data.select_by": "loss"}
    opened: Any = load_run(given.run, given.weights, overrides)
    opened.task.validated = list(texts.texts)
    result: dict[str, Any] = {"run": str(given.run), "weights": str(opened.weights)}
    result |= {"data": given.data or data.source}
    result |= opened.evaluate(given.limit, report)
    if not is_main_process():
        return 0
    note_what_was_met(texts, result["data"], report)
    translator = TextTranslator(opened.model, opened.task.vocabulary, data.max_length, how)
    scores, written = score_directions(translator, texts.texts, report)
    report.finish()
    if given.write:
        write(given.write, written)
    result |= as_json(texts.split, scores, data.pivot_language)
    result["search"] = {name: getattr(how, name) for name in ("beams", "length_penalty", "longest")}
    if given.json:
        print_json(result)
    else:
        print(as_text(result, scores))
    return 0


def chosen(texts: ReferenceTexts, directions: list[str] | None) -> ReferenceTexts:
    """Keep the directions that were asked for.

    Raises:
        ConfigError: If one of them is not there; names the nearest.
    """
    if directions is None:
        return texts
    wanted = [(found[0], found[-1]) for found in map(split_direction, directions)]
    missing = [
        name for name, pair in zip(directions, wanted, strict=True) if pair not in texts.texts
    ]
    if missing:
        there = ["-".join(pair) for pair in texts.texts]
        near = ", ".join(get_close_matches(missing[0], there, n=3, cutoff=0.0))
        lines = f"--directions {', '.join(missing)}: not among the {len(there)}; nearest: {near}"
        raise ConfigError([lines])
    kept = {pair: texts.texts[pair] for pair in wanted}
    return ReferenceTexts(texts.split, kept, texts.unknown, texts.counts)


def note_what_was_met(texts: ReferenceTexts, source: str, report: ProgressBars) -> None:
    """Say what is scored, and what of it is odd."""
    total = sum(len(pairs) for pairs in texts.texts.values())
    kinds = (INVALID_UTF8, HALF_CHARACTERS, LONG_LINES, MALFORMED)
    odd = [f"{texts.counts[kind]:,} {kind}" for kind in kinds if texts.counts[kind]]
    if texts.unknown:
        odd.append(f"unknown to the model, left out: {', '.join(texts.unknown)}")
    words = "".join(f"; {each}" for each in odd)
    report.say(f"{source} ({texts.split}): {total:,} sentences{words}")


def write(directory: Path, written: dict[Direction, list[str]]) -> None:
    """Write translations, a line each, as SOURCE-TARGET.txt."""
    directory.mkdir(parents=True, exist_ok=True)
    for direction, lines in written.items():
        text = "".join(" ".join(line.splitlines()) + "\n" for line in lines)
        path = directory / f"{'-'.join(direction)}.txt"
        write_text(path, text)


def as_json(split: str, scores: dict[Direction, TranslationScores], pivot: str) -> dict[str, Any]:
    """Return the scores for a program: by direction, averages, signatures."""
    found: dict[str, Any] = {"split": split, "pivot_language": pivot}
    for name in ("bleu", "chrf"):
        values = {direction: getattr(each, name) for direction, each in scores.items()}
        mean = average_directions(values, pivot)
        found[name] = {"-".join(direction): value for direction, value in values.items()}
        found[f"{name}_average"] = {"out": mean.out, "into": mean.into, "both": mean.both}
    found["sentences"] = {"-".join(d): each.sentences for d, each in scores.items()}
    found["signatures"] = signatures()
    return found


def as_text(result: dict[str, Any], scores: dict[Direction, TranslationScores]) -> str:
    """Return the scores as a table."""
    lines = [f"{result['weights']} on {result['data']} ({result['split']}):"]
    lines += [
        f"  {name:<16}{result[name]:.4f}" for name in ("loss", "perplexity") if name in result
    ]
    lines.append(COLUMNS.format("direction", "sentences", "BLEU", "chrF"))
    lines += [
        COLUMNS.format("-".join(direction), each.sentences, f"{each.bleu:.2f}", f"{each.chrf:.2f}")
        for direction, each in scores.items()
    ]
    if len(scores) > 1:
        pivot = result["pivot_language"]
        for key, name in (("out", f"{pivot}->X"), ("into", f"X->{pivot}"), ("both", "average")):
            bleu, chrf = (result[f"{metric}_average"][key] for metric in ("bleu", "chrf"))
            if bleu == bleu:  # there is such a direction
                lines.append(COLUMNS.format(f"mean {name}", "", f"{bleu:.2f}", f"{chrf:.2f}"))
    lines += [f"  {name}: {text}" for name, text in result["signatures"].items()]
    return "\n".join(lines)
