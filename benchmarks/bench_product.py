"""Magneto's training step for `make bench`: its task, its loss, its loop.

No data is read. The task comes from a recipe, and a random batch replaces its training data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench_cases import ANSWERS, MEL_BINS, PATCH, QUESTION, Case, draw
from benchmarks.turns import LEARNING_RATE
from magneto.data.stream import BatchStream
from magneto.progress import ProgressBars
from magneto.recipe import build_recipe
from magneto.speech.batching import SpeechBatch
from magneto.training.config import TrainingConfig
from magneto.training.distributed import World, keep_freed_memory, single_process
from magneto.training.logging import read_steps
from magneto.training.loop import build_state, train_step
from magneto.training.task import Task
from magneto.vision_language.samples import join_samples

# As the peers' own configurations have them: a learned table of positions, no dropout.
POSITIONS = {
    "causal-lm": "learned",
    "masked-lm": "learned",
    "translation": "sinusoidal",
    "image-classification": "learned",
    "transducer": "sinusoidal",
    "visual-question-answering": "none",  # its embeddings have their own
}
# Of the predictor, the joiner and the convolutions of a transducer.
SPEECH = {
    "predictor_width": 256, "predictor_layers": 1, "joint_width": 256, "front_channels": (16, 32),
    "ctc_weight": 0.0, "lm_weight": 0.0,
}  # fmt: skip


def model_values(case: Case, placement: str) -> dict[str, Any]:
    """Return the `model` section of the recipe."""
    values: dict[str, Any] = {
        "width": case.width, "heads": case.heads, "ffn_width": 4 * case.width,
        "placement": placement, "positions": POSITIONS[case.field], "layers": case.layers,
    }  # fmt: skip
    image = {"image_size": case.image_size, "patch_size": PATCH}
    own = {
        "causal-lm": {"vocab_size": case.vocab_size, "max_length": case.length},
        "masked-lm": {"vocab_size": case.vocab_size, "max_length": case.length},
        "translation": {"vocab_size": case.vocab_size, "encoder_layers": case.layers // 2,
                        "decoder_layers": case.layers // 2, "max_length": case.length},
        "image-classification": {**image, "classes": case.vocab_size, "class_token": "learned",
                                 "pooling": "first", "max_length": case.length + 1},
        "transducer": {**SPEECH, "vocab_size": case.vocab_size, "mel_bins": MEL_BINS},
        "visual-question-answering": {**image, "vocab_size": case.vocab_size, "answers": ANSWERS,
                                      "max_length": QUESTION},
    }  # fmt: skip
    return values | own[case.field]


DATA: dict[str, dict[str, Any]] = {
    "causal-lm": {"source": "builtin:docstrings", "tokenizer": "bytes"},
    "masked-lm": {"source": "builtin:docstrings", "tokenizer": "bytes"},
    "translation": {"source": "builtin:phrases:de,en"},
    "image-classification": {"source": "builtin:digits"},
    "transducer": {"source": "builtin:spoken-digits", "tokenizer": "characters"},
    "visual-question-answering": {"source": "builtin:shapes", "tokenizer": "bytes"},
}


def product_batch(case: Case) -> Any:
    """Return the random batch in the form of the field's task."""
    drawn = draw(case)
    if case.field == "causal-lm":
        window = drawn["window"]
        return {"tokens": window[:, :-1].contiguous(), "targets": window[:, 1:].contiguous()}
    if case.field == "masked-lm":
        return drawn
    if case.field == "translation":
        return [translation_group(drawn)]
    if case.field == "image-classification":
        targets = F.one_hot(drawn["labels"], case.vocab_size).float()
        broken = torch.zeros(case.batch, dtype=torch.bool)
        return {**drawn, "targets": targets, "broken": broken}
    if case.field == "transducer":
        return [speech_group(drawn)]
    questions = list(drawn["questions"].numpy().astype(np.int64))
    return {
        "images": drawn["images"],
        "samples": join_samples(1 + case.length, paired=questions),
        "targets": F.one_hot(drawn["labels"], ANSWERS).float(),
        "rows": torch.arange(case.batch),
        "broken": torch.zeros(case.batch, dtype=torch.bool),
    }


def translation_group(drawn: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a group of sentences of one length."""
    source, window = drawn["source"], drawn["window"]
    target, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    cells = source.numel() + target.numel()
    mask = torch.ones_like(source, dtype=torch.bool)
    return {"source": source, "source_mask": mask, "target": target, "targets": targets,
            "predicted": targets.numel(), "real": cells, "cells": cells}  # fmt: skip


def speech_group(drawn: Mapping[str, Tensor]) -> SpeechBatch:
    """Return a group of utterances of one length."""
    features, targets = drawn["features"], drawn["targets"]
    batch, frames = features.shape[:2]
    labels = targets.shape[1]
    return SpeechBatch(
        features=features,
        feature_lengths=torch.full((batch,), frames),
        targets=targets,
        target_lengths=torch.full((batch,), labels),
        sizes=[(frames, labels)] * batch,
        weights=torch.ones(batch),
        ids=[str(row) for row in range(batch)],
        problems=[""] * batch,
        texts=[""] * batch,
        frames=batch * frames,
    )


def build_task(case: Case, placement: str, ranks: int = 1) -> tuple[Task, TrainingConfig]:
    """Return the field's task with the random batch as its data, and its training settings."""
    recipe = build_recipe(
        "benchmarks/bench",
        {
            "task": case.field,
            "model": model_values(case, placement),
            "data": DATA[case.field],
            "training": {"steps": 10**6, "batch_size": ranks, "learning_rate": LEARNING_RATE,
                         "schedule": "constant", "clip_norm": 1.0, "device": "cpu"},
        },
    )  # fmt: skip
    task, batch = recipe.build_task(), product_batch(case)
    repeated = BatchStream(lambda step: [batch], lambda piece: batch)  # one batch again and again
    task.train_stream = lambda batch_size, seed: repeated  # type: ignore[method-assign]
    vars(task).update(learnt(case))
    return task, recipe.training


def learnt(case: Case) -> dict[str, Any]:
    """Return the values that the field's task derives from its data before it builds a model."""
    if case.field in ("translation", "transducer"):
        return {"vocabulary": SimpleNamespace(size=case.vocab_size)}
    if case.field == "visual-question-answering":
        return {"answers": [str(number) for number in range(ANSWERS)]}
    return {}


def product_step(
    case: Case, placement: str, world: World | None = None
) -> tuple[Callable[[], float], nn.Module]:
    """Return a function that takes one step of Magneto's loop, and the model.

    The training has no directory and writes nothing. The function returns the loss per
    prediction. The thread that makes its batches ends with the function.

    Args:
        case: The field and its sizes.
        placement: Name of the norm placement.
        world: The ranks; each takes a batch of the case (default: one process).
    """
    world = world or single_process(torch.device("cpu"))
    kept = ExitStack()
    kept.enter_context(keep_freed_memory(world.device))  # as `magneto.training.loop.train` does
    task, config = build_task(case, placement, world.world_size)
    nowhere = Path(os.devnull) / "run"
    state = build_state(task, config, nowhere, 1, world, ProgressBars(quiet=True))
    batches = state.batches.start(0)

    def step(kept: ExitStack = kept) -> float:
        train_step(state, next(batches))
        (row,), state.pending = read_steps(state.pending), []
        return row["loss"] / row["count"]

    finalize(step, state.close)
    return step, state.model
