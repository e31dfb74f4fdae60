"""What the measured numbers of a short run mean: thresholds, most of them from a calibration.

The calibration (benchmarks/probe_calibration.py) probed and trained configurations of five tasks;
its rows and the tables made of them are in benchmarks/results/probe-calibration.*. No row of the
half that the documentation reports was looked at when a threshold was chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

Level = Literal["sound", "not decided", "likely to fail"]
# Half of the largest finite number.
HALF_FP16, HALF_BF16 = 32752.0, 1.694e38
LEVELS: tuple[Level, ...] = ("sound", "not decided", "likely to fail")


@dataclass(frozen=True)
class Measured:
    """The numbers that findings are made of; None where one was not measured.

    Attributes:
        kept: Of what tells positions apart in the first layer's output at initialisation, the share
            left in the last one's (mean squares, the worst stack).
        moved: Change of the last stack's output under the first step at the peak rate, over its
            norm.
        update: Change of the layers' weights under that step, over their norm.
        distinct: Of the square of the last layer's output after the steps at the peak rate, the
            share that tells positions apart (the worst stack); 0 where it is not finite.
        peak_rise: The largest loss of those steps, over the first.
        imbalance: The largest gradient norm of a layer over the smallest.
        attention: The least attention entropy, over the largest possible.
        largest: The largest activation; infinite where a layer is not finite.
        rise: The loss after the steps taken, over the first.
    """

    kept: float | None = None
    moved: float | None = None
    update: float | None = None
    distinct: float | None = None
    peak_rise: float | None = None
    imbalance: float | None = None
    attention: float | None = None
    largest: float | None = None
    rise: float | None = None

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the numbers."""
        return [field.name for field in fields(cls)]


@dataclass(frozen=True)
class Threshold:
    """From where on a number is no longer sound, and from where on it foretells failure.

    Attributes:
        worse: Whether a number is worse above or below.
        undecided: First value that is not sound.
        fails: First value that foretells failure.
        source: Where they come from.
    """

    worse: Literal["above", "below"]
    undecided: float
    fails: float
    source: str

    def level(self, value: float | None) -> Level:
        """Return what a value means; one that is no number means failure."""
        if value is None:
            return "sound"
        if self.worse == "below":
            fine, bearable = value > self.undecided, value > self.fails
        else:
            fine, bearable = value < self.undecided, value < self.fails
        return "sound" if fine else "not decided" if bearable else "likely to fail"


THRESHOLDS = {
    "kept": Threshold("below", 0.25, 0.05, "placements and depths, and the calibration"),
    "moved": Threshold("above", 1.25, 1.45, "the calibration"),
    "update": Threshold("above", 0.1, 0.5, "the calibration"),
    "distinct": Threshold("below", 2e-3, 3e-4, "the calibration"),
    "peak_rise": Threshold("above", 1.5, 3.0, "the calibration"),
    "imbalance": Threshold("above", 100.0, math.inf, "a rule of thumb"),
    "attention": Threshold("below", 0.05, -math.inf, "a rule of thumb"),
    "largest": Threshold(
        "above", HALF_FP16, HALF_BF16, "half of the largest number of fp16, and of bf16"
    ),
    "rise": Threshold("above", 1.5, 1.5, "the training loop's, for divergence"),
}


def worst_level(measured: Measured) -> Level:
    """Return the worst level of all numbers."""
    found = [limit.level(getattr(measured, name)) for name, limit in THRESHOLDS.items()]
    return max(found, key=LEVELS.index)
