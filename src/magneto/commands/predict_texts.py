"""`magneto predict` of texts: the label of each, with probabilities if they are asked for."""

from __future__ import annotations

import argparse
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from magneto.commands.arguments import print_json
from magneto.commands.standard_input import is_standard_input, open_standard_input
from magneto.commands.translate import arriving
from magneto.config import ConfigError
from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.language.classification.files import ROWS, Row
from magneto.language.classification.glue import Columns
from magneto.language.classification.unlabelled import line_rows, read_unlabelled
from magneto.progress import ProgressBars
from magneto.runs import load_run

if TYPE_CHECKING:
    from magneto.language.classification.prediction import TextPrediction

# Texts that are sorted by length together, before any of them is printed.
SORTED = 1024


def predict(given: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    """Run the command for a run that classifies texts.

    Raises:
        ConfigError: If probabilities of a number are asked for.
        FileNotFoundError: If a file is not there.
        ValueError: If a file has no such column, or there is no text at all.
    """
    from magneto.language.classification.prediction import predict_texts

    opened: Any = load_run(given.run, given.weights, overrides, verb="predict")
    task, counts, report = opened.task, Counts(), ProgressBars()
    if given.probabilities and task.data_config.number:
        raise ConfigError([f"{given.run} answers with numbers, which have no --probabilities"])
    alone = not given.inputs or is_standard_input(given.inputs[0])
    if alone and sys.stdin is not None and sys.stdin.isatty():
        report.say("texts from standard input, one per line")
    texts: list[dict[str, Any]] = []
    done = cut = 0
    for some in groups(given.inputs, task.data_config.columns, counts):
        said, longer = predict_texts(task, opened.model, some)
        done, cut = done + len(some), cut + longer
        for row, each in zip(some, said, strict=True):
            if given.json:
                texts.append(described(row, each, given.probabilities))
            else:
                print(line(row, each, given.probabilities), flush=alone)
        report.update("predicting texts", done, None)
    report.finish()
    if not done:
        raise ValueError(f"no text in {', '.join(given.inputs) or 'standard input'}")
    counts[ROWS] = done
    report.say(counts.describe(ROWS))
    if cut:
        most = task.data_config.max_length
        report.say(f"{cut} of {done} texts are read up to {most} tokens, the rest is not looked at")
    if given.json:
        print_json({"run": str(given.run), "weights": str(opened.weights), "texts": texts})
    return 0


def groups(inputs: Sequence[str], columns: Columns, counts: Counts) -> Iterator[list[Row]]:
    """Yield the texts of files, those in quotes, or the lines of standard input, some at a time.

    Of standard input it is what is there: nobody who types, or whose program does, has to end it
    before there are answers.

    Raises:
        ConfigError: If standard input is needed, and closed.
        FileNotFoundError: If a word is neither a file nor has a space in it, as a text.
    """
    if inputs and not any(map(is_standard_input, inputs)):
        rows = chain.from_iterable(input_rows(word, columns, counts) for word in inputs)
        while some := list(islice(rows, SORTED)):
            yield some
        return
    if len(inputs) > 1:
        raise ConfigError(["standard input (-) is read alone"])
    mark = BOM_UTF8
    for lines in arriving(open_standard_input()):
        lines[0], mark = lines[0].removeprefix(mark), b""
        texts = [line.decode("utf-8", errors="replace") for line in lines]
        for start in range(0, len(texts), SORTED):
            yield list(line_rows(texts[start : start + SORTED], columns))


def input_rows(word: str, columns: Columns, counts: Counts) -> Iterator[Row]:
    """Return the texts of a file, or a text in quotes."""
    if any(map(str.isspace, word)) and not os.path.exists(word):  # a Path minds long texts
        return line_rows([word], columns)
    path = existing_path(word)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the files of texts in it")
    return read_unlabelled(path, columns, counts)


def line(row: Row, said: TextPrediction, probabilities: bool) -> str:
    """Return a line of output: cells between tabs, the label first and the texts last."""
    cells = [said.label]
    if probabilities:
        cells.append(" ".join(f"{name}={share:.4f}" for name, share in said.probabilities.items()))
    texts = (row.text,) if row.pair is None else (row.text, row.pair)
    return "\t".join([*cells, *(" ".join(text.split()) for text in texts)])


def described(row: Row, said: TextPrediction, probabilities: bool) -> dict[str, Any]:
    """Return what is said of a text as plain values."""
    found: dict[str, Any] = {"text": row.text, "label": said.label}
    if row.pair is not None:
        found["pair"] = row.pair
    if probabilities:
        found["probabilities"] = dict(said.probabilities)
    return found
