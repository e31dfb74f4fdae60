"""The design of the probe's calibration: which configurations are probed and trained.

They are drawn by a fixed seed. A longer design begins with a shorter one.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import Any

from magneto.recipe import Recipe, load_recipe
from magneto.theory.placement import PLACEMENTS

SEED = 11
# So many configurations were there when thresholds were chosen; what follows is held out.
CHOSEN_ON = 150
# Depths and rates are drawn evenly in logarithms. Below the least rate little learns in so few
# steps, whatever the placement: that is no fault that a probe could find.
RATES = (2e-3, 1.0)
WIDTHS = (32, 48, 64, 96)
# Layers times width at most, but for the least width, so that a run takes seconds.
MOST = 768
WARMUP = 20


@dataclass(frozen=True)
class Kind:
    """One task of the design: the tiny recipe, cut so that healthy models learn in seconds."""

    recipe: str
    most_layers: int
    settings: dict[str, Any]


KINDS = {
    "causal-lm": Kind(
        "causal-lm/tiny", 24,
        {"data.tokenizer": "bytes", "data.max_length": 64, "training.batch_size": 8,
         "training.steps": 120, "training.evaluate_limit": 8},
    ),
    "masked-lm": Kind(
        "masked-lm/tiny", 24,
        {"data.tokenizer": "bytes", "data.max_length": 16, "training.batch_size": 48,
         "training.steps": 200, "training.evaluate_limit": 16},
    ),
    "translation": Kind(
        "translation/tiny", 18,
        {"data.vocab_size": 512, "data.max_tokens": 256, "training.steps": 100,
         "training.evaluate_limit": 8},
    ),
    "text-classification": Kind(
        "text-classification/tiny", 24,
        {"data.vocab_size": 1024, "data.max_length": 16, "training.batch_size": 16,
         "training.steps": 200},
    ),
    "image-classification": Kind(
        "image-classification/tiny", 24,
        {"training.batch_size": 16, "training.steps": 100},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """One point of the design; `layers` are those of each stack."""

    task: str
    placement: str
    layers: int
    width: int
    learning_rate: float
    warmup_steps: int

    @property
    def name(self) -> str:
        """Everything in a line; what a row is found by."""
        values = asdict(self)
        return " ".join(f"{value:g}" if key == "learning_rate" else str(value)
                        for key, value in values.items())  # fmt: skip

    def recipe(self) -> Recipe:
        """Return what is probed and trained."""
        kind = KINDS[self.task]
        stacks = ("encoder_layers", "decoder_layers") if self.task == "translation" else ("layers",)
        return load_recipe(
            kind.recipe,
            {
                **kind.settings,
                **{f"model.{stack}": self.layers for stack in stacks},
                "model.placement": self.placement,
                "model.width": self.width,
                "model.ffn_width": 4 * self.width,
                "training.learning_rate": self.learning_rate,
                "training.warmup_steps": self.warmup_steps,
                "training.evaluate_every": 0,
                "training.save_every": 0,
                "training.divergence_patience": 30,
                "training.tensorboard": False,
                "training.device": "cpu",
            },
        )


def design(count: int) -> list[Configuration]:
    """Draw configurations, tasks in turn; a longer design begins with a shorter one."""
    draw = random.Random(SEED)
    decks: dict[str, list[str]] = {task: [] for task in KINDS}
    drawn = []
    for number in range(count):
        task = list(KINDS)[number % len(KINDS)]
        decks[task] = decks[task] or draw.sample(list(PLACEMENTS), len(PLACEMENTS))
        layers = round(math.exp(draw.uniform(math.log(1.5), math.log(KINDS[task].most_layers))))
        stacks = 2 if task == "translation" else 1
        width = draw.choice([w for w in WIDTHS if w == WIDTHS[0] or w * layers * stacks <= MOST])
        power = draw.uniform(*map(math.log10, RATES))
        rate = float(f"{10**power:.2g}")
        warmup = draw.choice((0, WARMUP))
        drawn.append(Configuration(task, decks[task].pop(), layers, width, rate, warmup))
    return drawn
