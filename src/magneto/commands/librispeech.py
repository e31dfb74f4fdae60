"""`magneto librispeech`: the paper's table of word error rates, from finished runs."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from magneto.commands.arguments import Parser, print_json
from magneto.commands.recognition_scores import measure_split, split_settings
from magneto.commands.transcribe import recognition_search_options, search_of
from magneto.config import ConfigError
from magneto.files import MANIFEST, plain, write_json
from magneto.functional.statistics import half_width
from magneto.progress import ProgressBars
from magneto.recipe import open_run
from magneto.runs import open_task, run_task

SPLITS = ("dev-clean", "dev-other", "test-clean", "test-other")
# In a run: what was measured, so that it is done once.
FILE = "librispeech.json"
# Fields of training that seeds of one row must have in common, besides model and data.
TRAINED = ("training.steps", "training.batch_size", "training.warmup_steps", "training.schedule")
PAPER = {
    ("Pre-LN", 18): (2.97, 6.52, 3.19, 6.62),
    ("Sub-LN", 18): (2.68, 6.04, 2.99, 6.16),
    ("Pre-LN", 36): (2.59, 6.10, 2.89, 6.04),
    ("Sub-LN", 36): (2.43, 5.34, 2.72, 5.56),
}
"""Word error rates of the paper's table, by placement and layers, in the order of `SPLITS`."""


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "librispeech",
        "The paper's table from finished speech recognition runs: word error rates by placement\n"
        "and layers on LibriSpeech's four sets. What was measured is kept in the run.",
        "magneto librispeech runs/sub-18 runs/pre-18 --data LibriSpeech --weights averaged "
        "--search modified --beams 10",
    )
    add = made.add_argument
    add(
        "runs",
        nargs="+",
        type=Path,
        help="directories of finished runs; alike but for the seed, a row",
    )
    add("--weights", default="auto", help="best (default), final, averaged, last or a step")
    add("--splits", default=",".join(SPLITS), help="other splits of the data")
    recognition_search_options(made)
    add("--beams", type=int, default=10, help="hypotheses of a beam (10)")
    add("--limit", type=int, help="batches of each split; nothing is kept then")
    add("--paper", action="store_true", help="with the paper's rows")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(words)
    splits = tuple(given.splits.split(","))
    report = ProgressBars()
    if given.limit is not None and given.limit < 1:
        raise ConfigError([f"--limit {given.limit}: at least 1"])
    for run in given.runs:
        run_task(run, {}, "librispeech")
    check_rows(given.runs)
    found = [run_scores(run, splits, given, report) for run in given.runs]
    report.finish()
    lines = table(found, splits, given.paper)
    if given.json:
        print_json({"runs": found, "table": lines})
        return 0
    wide = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    for line in lines:
        cells = (
            word.rjust(n) if i else word.ljust(n)
            for i, (word, n) in enumerate(zip(line, wide, strict=True))
        )
        print("  ".join(cells))
    return 0


def check_rows(runs: Sequence[Path]) -> None:
    """Raise ConfigError if runs of one row of the table are not seeds of one recipe."""
    from magneto.training.resume import differences

    rows: dict[tuple[str, int, float], list[tuple[Path, Any]]] = {}
    for run in runs:
        recipe: Any = open_run(run)
        row = (recipe.model.row.title, recipe.model.layers, recipe.training.learning_rate)
        for other, its in rows.setdefault(row, []):
            both = [other_recipe.to_mapping() for other_recipe in (its, recipe)]
            found = [words for name, words in differences(*both) if compared(name)]
            if its.seed == recipe.seed:
                found.append(f"their seed is the same, {recipe.seed}")
            if found:
                title, layers, rate = row
                raise ConfigError([f"{run} and {other} would be seeds of one row ({title}, "
                                   f"{layers} layers, rate {rate:g}), but {', '.join(found)}: "
                                   "leave one out"])  # fmt: skip
        rows[row].append((run, recipe))


def compared(name: str) -> bool:
    """Return whether runs of one row must have the same value of a field of their recipes."""
    from magneto.training.resume import PLACES

    return name in TRAINED or (name.startswith(("model.", "data.")) and name not in PLACES)


def run_scores(
    run: Path, splits: Sequence[str], given: argparse.Namespace, report: ProgressBars
) -> dict[str, Any]:
    """Return placement, layers, rate and word error rates of a run; measure what is not known."""
    from magneto.weights import find_weights

    recipe = open_run(run)
    weights = find_weights(run, given.weights)
    how = {
        "weights": weights.name,
        "manifest": (weights / MANIFEST).read_text(encoding="utf-8"),
        "search": repr(search_of(given)),
    }
    known = read_known(run / FILE, how)
    overrides = {"data.source": given.data} if given.data else {}
    for split in splits:
        digest = split_digest(run, overrides, split, report)
        if known.get(split, {}).get("digest") != digest:
            measured = measure_split(
                run, given.weights, overrides, split, search_of(given), given.limit, report
            )
            kept = {k: v for k, v in measured.items() if k not in ("answers", "weights")}
            known[split] = kept | {"digest": digest}
            if given.limit is None:
                write_json(run / FILE, plain({"how": how, "splits": known}))
    return {
        "run": str(run),
        "placement": recipe.model.row.title,
        "layers": recipe.model.layers,
        "rate": recipe.training.learning_rate,
        "seed": recipe.seed,
        "splits": {split: known[split] for split in splits},
    }


def split_digest(run: Path, overrides: Mapping[str, Any], split: str, report: ProgressBars) -> str:
    """Return a name for the content of a split, wherever it lies; only headers are read."""
    _, task = open_task(run, split_settings(run, overrides, split), "librispeech")
    speech: Any = task
    speech.prepare(report)
    return speech.speech.splits.validation.digest


def read_known(path: Path, how: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured before in the same way, by split."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return dict(held["splits"]) if held["how"] == how else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def table(found: Sequence[dict[str, Any]], splits: Sequence[str], paper: bool) -> list[list[str]]:
    """Return the table as words: a head, then a line per placement, layers and rate; in percent.

    Of several seeds it is the mean with its 95 % confidence interval over them; of one run the
    interval is over utterances.
    """
    lines = [["", "layers", "rate", "runs", *splits]]
    rows: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
    for each in found:
        rows.setdefault((each["placement"], each["layers"], each["rate"]), []).append(each)
    for (placement, layers, rate), runs in sorted(rows.items(), key=lambda row: row[0][1]):
        line = [placement, str(layers), f"{rate:g}", str(len(runs))]
        lines.append(line + [_word([run["splits"][split] for run in runs]) for split in splits])
    if paper and tuple(splits) == SPLITS:
        for (placement, layers), values in PAPER.items():
            line = [f"{placement} (paper)", str(layers), "", "1"]
            lines.append(line + [f"{value:.2f}" for value in values])
    return lines


def _word(scores: Sequence[dict[str, Any]]) -> str:
    values = [100 * score["wer"] for score in scores]
    width = half_width(values) if len(values) > 1 else 100 * (scores[0]["wer_half_width"] or 0)
    around = "" if math.isnan(width) or width == 0 else f" ± {width:.2f}"
    return f"{fmean(values):.2f}{around}"
