"""Measure a run's Morse: error rates of characters over the noise and the speed.

    magneto train transducer/morse --out runs/morse
    python -m benchmarks.morse_curve runs/morse

At each ratio of signal to noise and each speed the same texts are sent, fading and drifting as the
run's recipe has it, and transcribed greedily. Results go to benchmarks/results/morse-curve-cpu.json
and .md, with 95 % intervals over the texts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from magneto.analysis.report.provenance import without_places
from magneto.files import plain, write_json, write_text
from magneto.runs import load_run
from magneto.speech.scores import character_errors, half_width_of_rate
from magneto.training.environment import environment

RESULTS = Path(__file__).parent / "results"
SOURCE = "builtin:morse"
# What is called clean: the least noise of the recipe's training.
CLEAN = 40.0


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Transcribe at every noise and speed, write a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of transducer/morse")
    parser.add_argument("--snrs", type=float, nargs="+", default=[-9, -6, -3, 0, 3, 6, 9, CLEAN],
                        help="decibels in 2500 Hz (-9 to 9 in threes, and 40)")  # fmt: skip
    parser.add_argument("--speeds", type=float, nargs="+", default=[12, 20, 28])
    parser.add_argument("--words", type=int, nargs=2, default=[1, 3], help="of a text (1 to 3)")
    parser.add_argument("--texts", type=int, default=150, help="in each cell (150)")
    parser.add_argument("--weights", default="best")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(words)
    rows = [measure(given, snr, speed) for speed in given.speeds for snr in given.snrs]
    recipe = load_run(given.run, given.weights, {}).recipe
    result = {
        "recipe": recipe.to_mapping(), "texts": given.texts, "words": given.words,
        "load": os.getloadavg(), "environment": environment(), "rows": rows,
    }  # fmt: skip
    place = given.out / "morse-curve-cpu"
    write_json(place.with_suffix(".json"), plain(without_places(result)))
    write_text(place.with_suffix(".md"), markdown(result))
    return result


def measure(given: argparse.Namespace, snr: float, speed: float) -> dict[str, Any]:
    """Return the error rates at one ratio of signal to noise, in decibels, and words per minute."""
    opened: Any = load_run(given.run, given.weights, {
        "data.source": SOURCE, "data.validation_source": SOURCE, "data.validation_limit": None,
        "data.synthetic.snr": [snr, snr], "data.synthetic.wpm": [speed, speed],
        "data.synthetic.words": given.words, "data.synthetic.validation_utterances": given.texts,
    })  # fmt: skip
    metrics = opened.evaluate()
    answers = opened.task.answers
    texts = [[answer[place] for answer in answers] for place in (1, 2)]
    return {
        "snr": snr, "wpm": speed, "cer": metrics["cer"], "wer": metrics["wer"],
        "half_width": half_width_of_rate(*texts, errors=character_errors),
        "characters": character_errors(*texts).units,
    }  # fmt: skip


def markdown(result: Mapping[str, Any]) -> str:
    """Return the result as a page with a table: a row for each noise, a column for each speed."""
    cells = {(row["snr"], row["wpm"]): row for row in result["rows"]}
    speeds = sorted({speed for _, speed in cells})
    lines = [
        "# Morse code: error rates of characters, in percent",
        "",
        f"{result['texts']} texts of {result['words'][0]} to {result['words'][1]} words at each "
        "speed, the same at each noise, with 95 % intervals over the texts; greedily. Decibels are "
        "of a held tone to the noise in 2500 Hz.",
        "",
        f"| dB | {' | '.join(f'{speed:g} words per minute' for speed in speeds)} |",
        f"|--:|{'--:|' * len(speeds)}",
    ]
    for snr in sorted({snr for snr, _ in cells}):
        found = (cells[snr, speed] for speed in speeds)
        each = (f"{100 * row['cer']:.1f} ± {100 * row['half_width']:.1f}" for row in found)
        lines.append(f"| {snr:g} | {' | '.join(each)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
