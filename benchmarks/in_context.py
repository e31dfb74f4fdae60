"""What reading a shared beginning once saves when options are scored, and what batches save.

    python -m benchmarks.in_context --data questions/ --out benchmarks/results

The same questions after the same demonstrations are scored in interleaved rounds, in four ways:
with shared beginnings read once or every option read from its beginning, in batches or one question
at a time. Times are of the processor (one thread unless OMP_NUM_THREADS says otherwise), so that a
machine that is busy with other things counts less.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.training_step import write_result
from magneto.data.tokenizer import load_tokenizer, train_bpe
from magneto.language.config import LanguageModelConfig
from magneto.language.in_context.evaluate import draw, encode_items, join
from magneto.language.in_context.files import Questions, load_questions
from magneto.language.in_context.suites import SUITES
from magneto.language.likelihood import Texts, log_likelihoods
from magneto.language.model import LanguageModel
from magneto.training.environment import environment

WAYS: dict[str, dict[str, Any]] = {
    "shared beginnings once, batches": {"share": True},
    "every option whole, batches": {"share": False},
    "shared beginnings once, one question at a time": {"share": True, "tokens": 1},
    "every option whole, one question at a time": {"share": False, "tokens": 1},
}
SHAPE = {"width": 256, "layers": 6, "heads": 8, "ffn_width": 1024, "positions": "rotary"}
LENGTH = 2048


def texts_of(questions: Questions, num_fewshot: int, count: int) -> tuple[list[Texts], int]:
    """Return questions with demonstrations, in tokens of a BPE trained on them; its size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        train_bpe((item.solved for item in questions.items), 4096, path)
        tokenizer = load_tokenizer(path)
    items = questions.items[:count]
    solved = tokenizer.encode([item.solved for item in questions.items])
    made = []
    for number, encoded in enumerate(encode_items(items, tokenizer)):
        drawn = draw(len(solved), num_fewshot, 1, number, number)
        made.append(join(encoded, [solved[d] for d in drawn], tokenizer.end, LENGTH)[0])
    return made, tokenizer.vocab_size


def measure(
    questions: Questions, num_fewshot: int, count: int, rounds: int
) -> list[dict[str, Any]]:
    """Time each way of scoring; the first round is not counted."""
    texts, vocabulary = texts_of(questions, num_fewshot, count)
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(**SHAPE, vocab_size=vocabulary)).eval()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    values: dict[str, list[list[float]]] = {}
    for _ in range(rounds + 1):
        for way, how in WAYS.items():
            start = time.process_time()
            values[way] = log_likelihoods(model, texts, **how)
            times[way].append(time.process_time() - start)
    flat = {way: torch.tensor([v for each in found for v in each]) for way, found in values.items()}
    first, *_ = flat.values()
    tokens = sum(len(sequence) - 1 for each in texts for sequence in each.sequences)
    rows = []
    for way in WAYS:
        low, middle, high = quantiles(times[way][1:], n=4)
        rows.append({
            "suite": questions.suite.name, "shots": num_fewshot, "questions": len(texts),
            "tokens": tokens, "way": way, "seconds": middle, "quartile_1": low, "quartile_3": high,
            "largest_difference": (flat[way] - first).abs().max().item(),
        })  # fmt: skip
    return rows


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page with a table."""
    where = result["machine"]
    lines = [
        "# Scoring options",
        "",
        f"{where['processor']}, {where['threads']} threads; torch {where['packages']['torch']}; "
        f"commit {where['commit']}; {result['date']}. A model of 6 layers of width 256, fp32.",
        "",
        "Processor seconds, medians with quartiles; speed beside every option whole, in batches.",
        "",
        "| suite | shots | questions | way | seconds | quartiles | speed | difference (nats) |",
        "|---|--:|--:|---|--:|---|--:|--:|",
    ]
    whole = {
        (row["suite"], row["shots"]): row["seconds"]
        for row in result["rows"]
        if row["way"] == "every option whole, batches"
    }
    for row in result["rows"]:
        speed = whole[row["suite"], row["shots"]] / row["seconds"]
        lines.append(
            f"| {row['suite']} | {row['shots']} | {row['questions']} | {row['way']} | "
            f"{row['seconds']:.2f} | {row['quartile_1']:.2f} to {row['quartile_3']:.2f} | "
            f"{speed:.2f} | {row['largest_difference']:.0e} |"
        )
    return "\n".join(lines) + "\n"


def main(words: list[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the suites' questions")
    parser.add_argument("--suites", nargs="+", default=["hellaswag", "winogrande"])
    parser.add_argument("--num-fewshot", nargs="+", type=int, default=[0, 4])
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="in-context-cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args(words)
    rows = []
    for suite in args.suites:
        questions = load_questions(SUITES[suite], args.data)
        for num_fewshot in args.num_fewshot:
            rows += measure(questions, num_fewshot, args.questions, args.rounds)
    where = environment()
    del where["command"]
    result = {
        "name": args.name,
        "rows": rows,
        "machine": where,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    write_result(result, markdown(result), args.out)


if __name__ == "__main__":
    main()
