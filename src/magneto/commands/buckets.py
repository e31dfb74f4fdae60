"""`magneto buckets`: the largest batch of each length of utterances that fits a memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.arguments import Parser, name_source, print_json
from magneto.config import ConfigError
from magneto.progress import ProgressBars
from magneto.recipe import load_recipe
from magneto.training.config import TrainingConfig

if TYPE_CHECKING:
    from magneto.speech.batching import SpeechBatch
    from magneto.speech.buckets import Bucket
    from magneto.training.task import Task

TASKS = ("transducer",)
GB = 1e9
# Linux: what resets the peak of a process's memory, and what tells it.
RESET, TOLD = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "buckets",
        "Before a speech recogniser is trained: take steps on full groups of short and of long\n"
        "utterances, and find the largest that fit a memory, by trying; and the data.max_frames\n"
        "and data.max_cells to train with.",
        "magneto buckets transducer/librispeech-18l --data LibriSpeech --memory 70",
        recipe=True,
    )
    add = made.add_argument
    add("recipe", help="name or path of a recipe")
    add("--memory", type=float, metavar="GB", help="of a GPU or a process (0.9 of the GPU's)")
    add("--buckets", type=int, default=5, help="buckets that utterances are divided into (5)")
    add("--ranks", type=int, default=1, help="processes that will share training.batch_size (1)")
    return made.with_data().with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given, overrides = parser().parse_with_overrides(words)
    if given.buckets < 1 or given.ranks < 1 or (given.memory or 1) <= 0:
        raise ConfigError(["--buckets and --ranks must be 1 or more, and --memory above 0"])
    name_source(overrides, given.data)
    recipe = load_recipe(given.recipe, overrides)
    if recipe.task not in TASKS:
        raise ConfigError([f"magneto buckets is for recipes of {', '.join(TASKS)}, "
                           f"not of {recipe.task}"])  # fmt: skip
    report = ProgressBars()
    task: Any = recipe.build_task()
    task.prepare(report)
    config: TrainingConfig = recipe.training
    pieces = given.ranks * config.gradient_accumulation_steps
    groups = math.ceil(config.batch_size / pieces)
    memory = StepMemory(task, config, recipe.seed)
    limit = given.memory * GB if given.memory else memory.whole() * 0.9
    slowest = min(task.data_config.augmentation.speeds)
    from magneto.speech.buckets import budgets, length_buckets

    buckets = length_buckets(task.speech.train_maker.lengths(slowest), given.buckets)
    found = []
    for number, bucket in enumerate(buckets, 1):
        found.append(measure(memory, bucket, groups, limit))
        report.update("measuring buckets", number, len(buckets))
    report.finish()
    counts = [count for count, _ in found]
    if not all(counts):
        first = counts.index(0)
        raise ConfigError([f"a step of {groups} x one utterance of {buckets[first].frames} frames "
                           f"takes {found[first][1] / GB:.3g} GB, and --memory is "
                           f"{limit / GB:.3g}: lower data.max_duration, or raise "
                           "training.gradient_accumulation_steps"])  # fmt: skip
    frames, cells = budgets(buckets, counts)
    rows = [
        asdict(bucket) | {"largest": count, "peak_gb": peak / GB}
        for bucket, (count, peak) in zip(buckets, found, strict=True)
    ]
    if given.json:
        print_json({"memory_gb": limit / GB, "device": str(memory.device), "groups": groups,
                    "buckets": rows, "max_frames": frames, "max_cells": cells})  # fmt: skip
        return 0
    print("\n".join(as_text(rows, groups, limit, str(memory.device))))
    print(f"every group fits with --data.max_frames {frames} --data.max_cells {cells}")
    return 0


def as_text(rows: Sequence[dict[str, Any]], groups: int, limit: float, device: str) -> list[str]:
    """Return the table as lines."""
    lines = [f"largest groups by which a step, of {groups} of them, takes at most "
             f"{limit / GB:.3g} GB on {device}:",
             f"  {'frames':>8}{'labels':>8}{'utterances':>12}{'largest':>9}{'GB':>8}"]  # fmt: skip
    for row in rows:
        lines.append(f"  {row['frames']:>8}{row['labels']:>8}{row['utterances']:>12}"
                     f"{row['largest']:>9}{row['peak_gb']:>8.2f}")  # fmt: skip
    return lines


def measure(memory: StepMemory, bucket: Bucket, groups: int, limit: float) -> tuple[int, float]:
    """Return the most utterances of a bucket that fit a memory, and what they take.

    If none does, what one takes.
    """
    from magneto.speech.buckets import largest_count

    took: dict[int, float] = {}

    def fits(count: int) -> bool:
        took[count] = memory(bucket, count, groups)
        return took[count] <= limit

    count = largest_count(fits)
    return count, took[max(count, 1)]


class StepMemory:
    """What a step of training takes at most, in bytes: weights, gradients, AdamW, activations.

    Args:
        task: Prepared.
        config: Of the training.
        seed: Of the weights.
    """

    def __init__(self, task: Task, config: TrainingConfig, seed: int) -> None:
        from magneto.training.distributed import one_process, pick_device
        from magneto.training.initial import initial_model
        from magneto.training.optimizer import build_optimizer

        self.task, self.config = task, config
        self.device = pick_device(config.device)
        self.world = one_process(self.device)
        self.model: Any = initial_model(task, seed, self.world)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(self.model, config)
        if self.device.type != "cuda" and not RESET.exists():
            raise ConfigError(["memory is measured on a GPU, or on Linux: set training.device"])

    def whole(self) -> int:
        """Return the bytes of the GPU.

        Raises:
            ConfigError: If there is none.
        """
        import torch

        if self.device.type != "cuda":
            raise ConfigError(["--memory GB is needed where there is no GPU"])
        return torch.cuda.get_device_properties(self.device).total_memory

    def __call__(self, bucket: Bucket, count: int, groups: int) -> float:
        """Take a step on `groups` groups of `count` utterances; infinite if memory runs out."""
        import torch

        from magneto.speech.buckets import full_group

        config = self.model.config
        batch = full_group(bucket, count, config.mel_bins, config.vocab_size)
        try:
            self._reset()
            self._step([batch] * groups)
            return self._peak()
        except torch.OutOfMemoryError:
            return math.inf
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def _step(self, batch: list[SpeechBatch]) -> None:
        # Tensors of the groups are their own, as in training.
        from magneto.training.optimizer import set_learning_rate
        from magneto.training.step import accumulate, scale_gradients

        batch = [replace(group, features=group.features.clone()) for group in batch]
        sums, _ = accumulate(self.task, self.model, [batch], self.config, self.world)
        scale_gradients(self.parameters, sums[1], self.config.clip_norm, self.world)
        set_learning_rate(self.optimizer, 0.0)
        self.optimizer.step()

    def _reset(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            RESET.write_text("5")

    def _peak(self) -> float:
        import torch

        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_reserved(self.device))
        line = next(row for row in TOLD.read_text().splitlines() if row.startswith("VmHWM"))
        return float(line.split()[1]) * 1024
