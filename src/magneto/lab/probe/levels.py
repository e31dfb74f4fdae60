"""What the measured numbers of a short run mean: thresholds, most of them from a calibration.

The calibration probed and trained configurations of five tasks;
its rows and the tables made of them are in benchmarks/results/probe-calibration.*. The thresholds
were chosen on its first rows; the documentation reports the others, which were made afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Level = Literal["sound", "not decided", "likely to fail"]
# Half of the largest finite number.
HALF_FP16, HALF_BF16 = 32752.0, 1.694e38
# Steps from one that is watched in training to the next: one that took three times as long as
# others would cost 2 %.
PERIOD = 100
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
        imbalance: The largest gradient norm of a layer over the smallest.
        attention: The least attention entropy, over the largest possible.
        largest: The largest activation; infinite where a layer is not finite.
        rise: The loss after the steps taken, over the first.
    """

    kept: float | None = None
    moved: float | None = None
    update: float | None = None
    distinct: float | None = None
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
        fails: First value that foretells failure; None where no value does.
        source: Where they come from.
    """

    worse: Literal["above", "below"]
    undecided: float
    fails: float | None
    source: str

    def level(self, value: float | None) -> Level:
        """Return what a value means; one that is no number is as bad as can be."""
        if value is None:
            return "sound"
        if self._is_better(value, self.undecided):
            return "sound"
        if self.fails is None or self._is_better(value, self.fails):
            return "not decided"
        return "likely to fail"

    def _is_better(self, value: float, limit: float) -> bool:
        return value > limit if self.worse == "below" else value < limit


# Of the first 150 configurations of the calibration 46 learned. Of those with kept below 0.05, 0 of
# 12 did, and below 0.25, 0 of 18; with distinct below 1e-4, 2 of 60, and from there to 5e-4, 1 of
# 7; with rise from 1.5, 0 of 22; with attention below 0.05, 1 of 19. With update below 0.1, 27 of
# 45 did, and from there 19 of 105: where branches are normalised, weights may change by much.
# "moved" tells runs apart no better than "update", and has no threshold.
THRESHOLDS = {
    "kept": Threshold("below", 0.25, 0.05, "depths of Post-LN, and the calibration"),
    "update": Threshold("above", 0.1, None, "the calibration"),
    "distinct": Threshold("below", 5e-4, 1e-4, "the calibration"),
    "imbalance": Threshold("above", 100.0, None, "a rule of thumb"),
    "attention": Threshold("below", 0.05, None, "a rule of thumb, and the calibration"),
    "largest": Threshold("above", HALF_FP16, HALF_BF16, "half of the formats' largest numbers"),
    "rise": Threshold("above", 1.5, 1.5, "the training loop's, and the calibration"),
}


def worst_level(measured: Measured) -> Level:
    """Return the worst level of all numbers."""
    found = [limit.level(getattr(measured, name)) for name, limit in THRESHOLDS.items()]
    return LEVELS[max(map(LEVELS.index, found))]
