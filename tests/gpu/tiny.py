"""The tiny recipe of every field: two layers, little data, no dropout, any device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from magneto.data.cache import cache_directory
from magneto.data.stream import to_device
from magneto.progress import ProgressBars
from magneto.recipe import Recipe, load_recipe, recipe_names
from magneto.speech.config import SyntheticConfig
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World
from magneto.training.loop import TrainingState, build_state
from magneto.training.task import Task, place_companion
from magneto.vision_language import scenes

# A new field's tiny recipe is in every test here from the day it is there.
TINY = [name for name in recipe_names() if name.endswith("/tiny")]
# Of each family of models one, which a CPU computes by default: a decoder, both stacks, images, a
# recurrent network with a lattice, images with texts. The others are slow there.
FAMILIES = (
    "causal-lm/tiny", "translation/tiny", "image-classification/tiny", "transducer/tiny",
    "vision-language-modelling/tiny",
)  # fmt: skip


def cases(names: Sequence[str] = FAMILIES) -> list[Any]:
    """Return each tiny recipe on each device, for a test's `name` and `device`.

    Args:
        names: Of recipes that a CPU computes by default.
    """
    slow = {name: () if name in names else pytest.mark.slow for name in TINY}
    return [
        *(pytest.param(name, "cpu", marks=slow[name], id=f"{name}-cpu") for name in TINY),
        *(pytest.param(name, "cuda", marks=pytest.mark.gpu, id=f"{name}-cuda") for name in TINY),
    ]


def quick_data() -> dict[str, dict[str, Any]]:
    """Write lines of made-up words as data; return what replaces which source.

    Built-in text and speech take seconds to make. Words are as frequent as words are: the n-th by
    1 / n. As classes, lines are numbered off; as a translation, a line is itself backwards.
    """
    folder, random = cache_directory(), Random(0)
    syllables = [first + second for first in "bdklmnprst" for second in "aeiou"]
    words = ["".join(random.choices(syllables, k=random.randint(1, 4))) for _ in range(500)]
    shares = [1 / (1 + number) for number in range(len(words))]
    texts = [" ".join(random.choices(words, shares, k=random.randint(4, 24))) for _ in range(1200)]
    rows = ({"text": text, "label": number % 2} for number, text in enumerate(texts))
    (folder / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for language, step in (("en", 1), ("de", -1)):
        turned = [" ".join(text.split()[::step]) for text in texts]
        (folder / f"lines.{language}").write_text("\n".join(turned) + "\n", encoding="utf-8")
    one = {"source": str(folder / "lines.jsonl")}
    two = {"source": str(folder / "lines"), "languages": ("en", "de"), "validation_limit": 50}
    two |= {"max_tokens": 256}
    few = {"synthetic": SyntheticConfig(train_utterances=24, validation_utterances=6)}
    few |= {"max_frames": 800, "max_duration": 8.0}
    return {
        "builtin:docstrings": one, "builtin:word-order": one,
        "builtin:phrases:de,en,es,fr": two, "builtin:spoken-digits": few,
    }  # fmt: skip


@cache
def tiny(name: str) -> tuple[Recipe, Task]:
    """Return a tiny recipe and its task, prepared; skips where the task's packages are not there.

    What cannot be the same on two devices (dropout) is off; layers alike take long to compile; and
    data that is slow to make is replaced.
    """
    recipe = load_recipe(name)
    given: dict[str, Any] = vars(recipe.model)
    model: dict[str, Any] = {f: 0.0 for f in given if "drop" in f}
    model |= {f: fewer(value) for f, value in given.items() if f.endswith("layers") and value}
    data = quick_data().get(recipe.data.source, {})
    recipe = replace(
        recipe, model=replace(recipe.model, **model), data=replace(recipe.data, **data)
    )
    task = recipe.build_task()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(scenes.PAIRS, "train", 400)
            task.prepare()
    except ModuleNotFoundError as error:
        pytest.skip(f"{name} needs {error.name}")
    return recipe, task


def fewer(layers: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Return two layers at most; of numbers of layers from 0, those that two have."""
    return min(layers, 2) if isinstance(layers, int) else tuple(min(n, 1) for n in layers)


def build(name: str, device: torch.device) -> tuple[Task, nn.Module]:
    """Return a tiny recipe's task, and its model as it is at first, in training mode."""
    recipe, task = tiny(name)
    place_companion(task, device)
    torch.manual_seed(recipe.seed)
    return task, task.build_model().to(device).train()


def batches(name: str, device: torch.device, count: int, parts: int = 1) -> list[Any]:
    """Return the first batches of a tiny recipe's training; of each cut in parts, the first."""
    recipe, task = tiny(name)
    stream = task.train_stream(max(recipe.training.batch_size, parts), recipe.seed)
    return [to_device(stream.batch(step, parts)[0], device) for step in range(count)]


@contextmanager
def begun(
    name: str, device: torch.device, run: Path, **changes: Any
) -> Iterator[tuple[TrainingState, Iterator[Any]]]:
    """Yield the state of a tiny recipe's training, ready to take steps, and its batches."""
    recipe, task = tiny(name)
    config: TrainingConfig = replace(recipe.training, device=str(device), **changes)
    world = World(0, 1, device, "none")
    state = build_state(task, config, run, recipe.seed, world, ProgressBars(quiet=True))
    try:
        yield state, state.batches.start()
    finally:
        state.close()


def gradients(task: Task, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss of a batch, and its gradients by name, which the model keeps too."""
    loss = task.loss(model, batch)
    mean = loss.total / loss.count
    mean.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return mean.detach(), found


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the norm of the difference of all tensors, as a share of what is expected."""
    assert found.keys() == expected.keys()
    pairs = [(found[n].double().cpu(), expected[n].double().cpu()) for n in expected]
    apart = torch.stack([(a - b).norm() for a, b in pairs]).norm()
    return (apart / torch.stack([b.norm() for _, b in pairs]).norm()).item()
