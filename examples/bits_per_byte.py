"""Bits per byte of a trained language model and of n-grams, on the same validation text.

python examples/bits_per_byte.py runs/first
"""

import lzma
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from magneto.runs import load_run


def unigram_bits(train: bytes, test: bytes) -> float:
    """Return bits per byte of `test` under a unigram model of `train` with add-one smoothing."""
    counts = np.bincount(np.frombuffer(train, np.uint8), minlength=256) + 1.0
    return float(-np.log2(counts / counts.sum())[np.frombuffer(test, np.uint8)].mean())


def bigram_bits(train: bytes, test: bytes) -> float:
    """Return bits per byte of `test` under a bigram model of `train`, smoothed by its unigrams."""
    symbols = np.frombuffer(train, np.uint8).astype(np.int64)
    single = np.bincount(symbols, minlength=256) + 1.0
    single /= single.sum()
    pairs = np.bincount(symbols[:-1] * 256 + symbols[1:], minlength=65536).reshape(256, 256)
    chance = (pairs + single) / (pairs.sum(1, keepdims=True) + 1.0)
    tested = np.frombuffer(test, np.uint8).astype(np.int64)
    bits = -np.log2(chance)[tested[:-1], tested[1:]]
    return float((bits.sum() - np.log2(single[tested[0]])) / len(tested))


def xz_bits(train: bytes, test: bytes) -> tuple[float, float]:
    """Return bits per byte of `xz -9` on `test` alone, and on `test` after `train`."""
    alone = len(lzma.compress(test, preset=9))
    added = len(lzma.compress(train + test, preset=9)) - len(lzma.compress(train, preset=9))
    return 8 * alone / len(test), 8 * added / len(test)


def text_baselines(train: Sequence[str], test: Sequence[str]) -> dict[str, float]:
    """Return bits per byte of every baseline, by name."""
    first, second = (
        "\n\n".join(texts).encode("utf-8", errors="replace") for texts in (train, test)
    )
    alone, added = xz_bits(first, second)
    return {
        "unigram": unigram_bits(first, second),
        "bigram": bigram_bits(first, second),
        "xz -9": alone,
        "xz -9 after the training text": added,
    }


def main(run: Path) -> dict[str, float]:
    """Return bits per byte of the run's best model and of the baselines, by name."""
    opened: Any = load_run(run, "best", {"training.device": "cpu"})
    task, metrics = opened.task, opened.evaluate().metrics
    baselines = text_baselines(task.documents("train"), task.documents("validation"))
    return {"this model": metrics["bits_per_byte"], **baselines}


def show(bits: dict[str, float]) -> None:
    """Print the table and the names of the baselines that are better than the model."""
    print("\nbits per byte of the validation text (lower is better)")
    for name, value in bits.items():
        print(f"  {name:<32}{value:.3f}")
    better = [name for name, value in bits.items() if value < bits["this model"]]
    print(f"better than this model: {', '.join(better) or 'none'}\n")


if __name__ == "__main__":
    show(main(Path(sys.argv[1])))
