"""Does masked pre-training on images with texts help where answered questions are few?

    python -m benchmarks.vision_language_pretraining
    python -m benchmarks.vision_language_pretraining --counts 10 --seeds 1 --pretraining-steps 100
    python -m benchmarks.vision_language_pretraining --encoder runs/pre-trained

A model of vision-language-modelling/tiny is pre-trained once on the built-in scenes and captions,
mostly on pairs of both; or it is a run that is there.
Then, for each number of scenes per question and answer, each seed and each `model.pooling`, two
models that answer questions are trained on these alone: from that run's encoder, and from scratch,
each at every rate of the grid; the rate with the best mean over seeds counts, for both, on the same
held-out scenes.
Results go to benchmarks/results/vision-language-pretraining.json and .md after every run; begun
again, it goes on.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.label_counts import ARMS, curve, grid, run, table
from magneto.analysis.report.provenance import without_places
from magneto.files import plain, read_json, write_json, write_text
from magneto.training.environment import environment
from magneto.vision_language.scenes import SceneQuestions, scene_questions

RESULTS = Path(__file__).parent / "results"
NAME = "vision-language-pretraining"
COUNTED = "scenes_per_answer"
SAME = {"training.device": "cpu", "training.tensorboard": False, "training.evaluate_every": 0}
# The second command of the recipe. With a third of pairs, and four of nine patches hidden, 2500
# steps do not teach which object has which colour.
PRETRAINING = {
    "data.batch_shares": [1, 1, 4],
    "data.image_mask_ratio": 0.12,
    "training.learning_rate": 2e-3,
}


def main(words: Sequence[str] | None = None) -> None:
    """Run what is left of the grid."""
    given = parse(words)
    place = given.encoder or given.runs / f"encoder-{given.pretraining_steps}"
    steps = {"training.steps": given.pretraining_steps, "training.save_every": 0}
    if given.encoder is None:
        run("vision-language-modelling/tiny", {**SAME, **PRETRAINING, **steps}, place)
    encoder = read_json(place / "result.json")
    found = []
    points = grid(given.counts, given.seeds, given.rates)
    for (count, seed, arm, rate), pooling in product(points, given.poolings):
        changes = {
            **SAME, "data.source": str(few_questions(count, seed, given.runs / "questions")),
            "training.steps": given.steps, "training.save_every": 0, "seed": seed,
            "training.learning_rate": rate, "model.pooling": pooling,
            "model.pretrained": str(place) if arm == ARMS[0] else None,
        }  # fmt: skip
        out = given.runs / f"{count}-{seed}-{arm.replace(' ', '-')}-{rate:g}-{pooling}"
        ended = run("visual-question-answering/tiny", changes, out)
        if ended["status"] == "interrupted":
            return
        found.append({
            COUNTED: count, "pooling": pooling, "seed": seed, "arm": arm, "rate": rate,
            "status": ended["status"], "accuracy": ended["metrics"].get("accuracy", 0.0),
            "seconds": ended["seconds"],
        })  # fmt: skip
        write(given, encoder, found)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[5, 15, 60],
                        help="training scenes of each question and answer")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each point (3)")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3])
    parser.add_argument("--poolings", nargs="+", default=["first", "mask_token"],
                        help="what the head reads: values of model.pooling")  # fmt: skip
    parser.add_argument("--steps", type=int, default=600, help="on questions, in both arms")
    parser.add_argument("--pretraining-steps", type=int, default=2000)
    parser.add_argument("--encoder", type=Path, help="a pre-trained run, in place of a new one")
    parser.add_argument("--runs", type=Path, default=Path("runs") / NAME)
    return parser.parse_args(words)


def few_questions(count: int, seed: int, folder: Path) -> Path:
    """Return a folder in easy-VQA's layout: so many training scenes of each question and answer.

    Which scenes are drawn depends on seed and count alone; those held out are always the same.
    """
    place = folder / f"{count}-{seed}"
    if (place / "answers.txt").is_file():
        return place
    splits = scene_questions()
    train = splits["train"]
    asked = list(zip(train.questions, train.answers, strict=True))
    draw = np.random.default_rng([seed, count])
    chosen: dict[tuple[str, str], list[int]] = {}
    for number in draw.permutation(len(asked)).tolist():
        chosen.setdefault(asked[number], []).append(number)
    some = sorted(number for numbers in chosen.values() for number in numbers[:count])
    write_split(train, some, place, "train")
    held = splits["validation"]
    write_split(held, range(len(held.questions)), place, "test")
    write_text(place / "answers.txt", "\n".join(sorted(set(train.answers))) + "\n")
    return place


def write_split(split: SceneQuestions, numbers: Sequence[int], place: Path, name: str) -> None:
    """Write some questions and their images."""
    from PIL import Image

    images = place / name / "images"
    images.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        Image.fromarray(split.images.open(number).pixels()).save(images / f"{number}.png")
    rows = [[split.questions[number], split.answers[number], number] for number in numbers]
    write_json(place / name / "questions.json", rows)


def write(given: argparse.Namespace, encoder: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Write what is there so far."""
    curves = {
        pooling: curve([entry for entry in found if entry["pooling"] == pooling], COUNTED)
        for pooling in dict.fromkeys(entry["pooling"] for entry in found)
    }
    RESULTS.mkdir(exist_ok=True)
    content = {
        "pretraining": {"steps": encoder["step"], "metrics": encoder["metrics"]},
        "steps": given.steps, "rates": given.rates, "curves": curves, "runs": found,
        "environment": environment(), "load": os.getloadavg(),
    }  # fmt: skip
    write_json(RESULTS / f"{NAME}.json", plain(without_places(content)))
    lines = [
        "# Masked pre-training on images with texts, then few questions", "",
        f"`vision-language-modelling/tiny` was trained for {encoder['step']:,} steps; then both "
        f"arms of `visual-question-answering/tiny` took {given.steps:,} steps on the questions "
        "alone, of which there are 96 with their answers. Accuracy on 768 held-out questions, mean "
        "over seeds with 95 % intervals, at the best of the rates "
        f"{', '.join(f'{rate:g}' for rate in given.rates)}.", "",
    ]  # fmt: skip
    for pooling, rows in curves.items():
        lines += [f"## model.pooling {pooling}", "", *table(rows, COUNTED, "scenes for each"), ""]
    write_text(RESULTS / f"{NAME}.md", "\n".join(lines))


if __name__ == "__main__":
    main()
