"""What `magneto evaluate` does for a speech recognition run: transcribe, and count errors."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import Parser, is_main_process, print_json
from magneto.commands.transcribe import recognition_search_options, search_of
from magneto.files import write_text
from magneto.progress import ProgressBars
from magneto.runs import load_run, other_data
from magneto.speech.scores import character_errors, half_width_of_rate, word_errors
from magneto.speech.text_normalisers import TextNormaliser, text_normaliser

if TYPE_CHECKING:
    from magneto.speech.decoding import Search

# As they are printed, in percent.
RATES = ("wer", "cer", "substitutions", "deletions", "insertions", "empty")
Scored = dict[str, Any]


def add_options(made: Parser) -> None:
    """Add what belongs to a speech recognition run; --beams, --limit and --write are there."""
    group = made.add_argument_group("speech recognition runs")
    group.add_argument(
        "--splits", metavar="A,B", help="splits of the data, each measured by itself"
    )
    recognition_search_options(group)
    group.add_argument(
        "--normaliser", metavar="NAME",
        help="rates of normalised texts too: whisper-english or whisper-basic, of transformers",
    )  # fmt: skip


def evaluate(given: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run `magneto evaluate RUN` for a speech recognition run."""
    report = ProgressBars(quiet=not is_main_process())
    normaliser = text_normaliser(given.normaliser) if given.normaliser else None
    if given.data:
        overrides = {**other_data(given.run, given.data), **overrides}
    found = {}
    for name in given.splits.split(",") if given.splits else [""]:
        found[name] = measure_split(
            given.run, given.weights, overrides, name, search_of(given), given.limit, report
        )
        if not is_main_process():
            continue
        if normaliser is not None:
            found[name] |= normalised(found[name]["answers"], normaliser)
        if given.write:
            write(given.write, name or "validation", found[name]["answers"])
    report.finish()
    if not is_main_process():
        return 0
    if given.json:
        results = {name: {k: v for k, v in each.items() if k != "answers"}
                   for name, each in found.items()}  # fmt: skip
        only = {
            "run": str(given.run),
            "search": given.search,
            "normaliser": normaliser and normaliser.title,
        }
        print_json(only | results.get("", {"splits": results}))
    else:
        print("\n".join([*as_text(found), *normalised_text(found, normaliser)]))
    return 0


def measure_split(
    run: Path,
    weights: str,
    overrides: Mapping[str, Any],
    split: str,
    search: Search,
    limit: int | None,
    report: ProgressBars,
) -> Scored:
    """Transcribe a split of a run's data.

    Args:
        run: Its directory.
        weights: Which; as in `magneto.weights.find_weights`.
        overrides: Dotted fields of its recipe.
        split: Name of a split of the source; "" for what the run validates on.
        search: How transcripts are found.
        limit: Batches at most.
        report: Shows it.

    Returns:
        Its metrics, the weights, `utterances`, `words`, `wer_half_width` of a 95 % confidence
        interval over utterances, and `answers`: (id, reference, hypothesis) each.
    """
    opened: Any = load_run(run, weights, split_settings(run, overrides, split))
    opened.task.search = search
    metrics = opened.evaluate(limit, report)
    answers = opened.task.answers
    references = [reference for _, reference, _ in answers]
    hypotheses = [hypothesis for _, _, hypothesis in answers]
    return {
        "weights": str(opened.weights),
        **metrics,
        "wer_half_width": half_width_of_rate(references, hypotheses),
        "utterances": len(answers),
        "words": word_errors(references, hypotheses).units,
        "answers": answers,
    }


def normalised(
    answers: Sequence[tuple[str, str, str]], normaliser: TextNormaliser
) -> dict[str, float]:
    """Return the error rates of normalised texts."""
    references, hypotheses = (
        [normaliser.normalise(texts[place]) for texts in answers] for place in (1, 2)
    )
    return {
        "wer_normalised": word_errors(references, hypotheses).rate,
        "cer_normalised": character_errors(references, hypotheses).rate,
        "wer_normalised_half_width": half_width_of_rate(references, hypotheses),
    }


def normalised_text(found: Mapping[str, Scored], normaliser: TextNormaliser | None) -> list[str]:
    """Return the error rates of normalised texts as lines, if there are any."""
    if normaliser is None:
        return []
    wide = max(len(name or "validation") for name in found)
    lines = [f"normalised by {normaliser.title}:", f"  {'':<{wide}}{'wer':>8}{'cer':>16}"]
    for name, each in found.items():
        around = f"±{100 * each['wer_normalised_half_width']:.2f}"
        wer, cer = (100 * each[f"{kind}_normalised"] for kind in ("wer", "cer"))
        lines.append(f"  {name or 'validation':<{wide}}{wer:>8.2f}{around:>8}{cer:>8.2f}")
    return lines


def split_settings(run: Path, overrides: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the fields of a run's recipe by which a split is measured whole.

    Args:
        run: Its directory.
        overrides: Further ones.
        split: Name of a split of the source; "" for what the run validates on.
    """
    if not split:
        return dict(overrides)
    source = overrides.get("data.source") or load_source(run, overrides)
    # A limit is of what training looks at.
    changed = {"data.validation_limit": None} | dict(overrides)
    return changed | {"data.source": source, "data.validation_source": source,
                      "data.validation_splits": split}  # fmt: skip


def load_source(run: Path, overrides: Mapping[str, Any]) -> str:
    """Return the source of a run's data."""
    from magneto.recipe import open_run

    return open_run(run, overrides).data.source


def write(directory: Path, name: str, answers: list[tuple[str, str, str]]) -> None:
    """Write references and transcripts, a JSON object per utterance, as NAME.jsonl.

    A split's name may have folders in it (data/dev), which are made.
    """
    path = directory / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps({"id": id, "reference": reference, "hypothesis": hypothesis}, ensure_ascii=False)
        for id, reference, hypothesis in answers
    )
    write_text(path, "\n".join(lines) + "\n")


def as_text(found: Mapping[str, Scored]) -> list[str]:
    """Return the scores as lines of a table, in percent but for the loss."""
    first = next(iter(found.values()))
    names = [name or "validation" for name in found]
    wide = max(map(len, names))
    head = "".join(f"{name[:6]:>8}" for name in RATES)
    lines = [f"{first['weights']}, texts as they are, errors per 100 words (cer: characters):",
             f"  {'':<{wide}}{head}{'':>8}{'words':>8}{'loss':>9}"]  # fmt: skip
    for name, each in zip(names, found.values(), strict=True):
        rates = "".join(f"{100 * each[rate]:>8.2f}" for rate in RATES)
        around = f"±{100 * each['wer_half_width']:.2f}"
        lines.append(f"  {name:<{wide}}{rates}{around:>8}{each['words']:>8}{each['loss']:>9.3f}")
    return lines
