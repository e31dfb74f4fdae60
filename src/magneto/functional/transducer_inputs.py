"""What the transducer loss is given: whether it fits, and which label each position emits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def check_joiner(encoder: Tensor, predictor: Tensor, weight: Tensor, *rest: Any) -> None:
    """Raise a ValueError that says what does not fit."""
    shapes = [tuple(tensor.shape) for tensor in (encoder, predictor, weight)]
    if (
        [len(shape) for shape in shapes] != [3, 3, 2]
        or shapes[0][::2] != shapes[1][::2]
        or shapes[0][2] != shapes[2][1]
    ):
        raise ValueError(
            "encoder (batch, time, joint), predictor (batch, labels + 1, joint) and weight "
            f"(vocabulary, joint) do not fit: {shapes[0]}, {shapes[1]}, {shapes[2]}"
        )
    check_logits((*shapes[0][:2], shapes[1][1], shapes[2][0]), *rest)


def check_logits(
    size: tuple[int, ...],
    targets: Tensor,
    frames: Tensor,
    labels: Tensor,
    blank: int,
    tile: int,
) -> None:
    """Raise a ValueError that says what does not fit."""
    if len(size) != 4 or 0 in size:
        raise ValueError(f"logits must be (batch, time, labels + 1, vocabulary), not {tuple(size)}")
    if targets.shape != (size[0], size[2] - 1):
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit (batch, time, labels + 1, "
            f"vocabulary) {tuple(size)}: they must be (batch, labels), {(size[0], size[2] - 1)}"
        )
    if frames.shape != size[:1] or labels.shape != size[:1]:
        raise ValueError(f"there must be two lengths for each of the {size[0]} utterances")
    if not 0 <= blank < size[3] or tile < 1:
        raise ValueError(f"blank {blank} must be in [0, {size[3]}), and tile {tile} at least 1")
    for name, lengths, most in (("frames", frames, size[1]), ("labels", labels, size[2] - 1)):
        if there_and_wrong((lengths < 0) | (lengths > most)):
            raise ValueError(f"lengths in {name} must be in [0, {most}], not {lengths.tolist()}")
    inside = torch.arange(targets.shape[1], device=targets.device) < labels[:, None]
    wrong = inside & ((targets < 0) | (targets >= size[3]) | (targets == blank))
    if there_and_wrong(wrong):
        raise ValueError(
            f"targets must be in [0, {size[3]}) and not the blank {blank}; "
            f"{sorted(set(targets[wrong].tolist()))} are not"
        )


def there_and_wrong(wrong: Tensor) -> bool:
    """Return whether any is True, on a CPU alone: on another device that would make the host wait.

    torch's own assertion is one operation, which reads nothing into Python.
    """
    if wrong.device.type != "cpu":
        return False
    try:
        torch._assert_async(~wrong.any())  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError:
        return True
    return False


def next_labels(targets: Tensor, lengths: Tensor) -> Tensor:
    """Return the label that each of the labels + 1 positions emits next, 0 where there is none."""
    position = torch.arange(targets.shape[1], device=targets.device)
    return F.pad(targets.masked_fill(position >= lengths[:, None], 0), (0, 1))
