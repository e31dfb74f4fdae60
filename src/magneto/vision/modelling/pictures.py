"""Pictures of masked image modelling: what is hidden, what is guessed, where a model looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magneto.training.task import Figure
from magneto.vision.modelling.targets import CodeTargets
from magneto.vision.tokenizer.pictures import (
    IMAGES,
    device_of,
    image_of,
    mean_patches,
    patches_of,
    png,
    seen_codes,
    tiles,
)

# Of a picture of attention.
HEADS = 8


@torch.no_grad()
def guesses_figure(
    model: Any, targets: CodeTargets, batches: Sequence[dict[str, Tensor]]
) -> Figure:
    """Show images, what the model sees of them, and both codes and guesses as mean patches.

    Args:
        model: A `MaskedImageModel`, on its device.
        targets: On its device.
        batches: Of the validation data.
    """
    images, codes = seen_codes(targets, batches, device_of(targets))
    images = targets.view(images.to(device_of(targets))).cpu()
    hidden = torch.cat([batch["hidden"][~batch["broken"]] for batch in batches])
    size = targets.patch_size
    means = mean_patches(images, codes, targets.codes, size)
    given = torch.cat([batch["images"][~batch["broken"]] for batch in batches])[:IMAGES]
    images, codes, hidden = images[:IMAGES], codes[:IMAGES], hidden[:IMAGES]
    device = next(model.parameters()).device
    guesses = model(given.to(device), hidden.to(device)).argmax(-1).cpu()
    right = (guesses == codes.gather(1, hidden)).float().mean()
    patches = patches_of(images, size)
    index = hidden[:, :, None, None, None].expand(-1, -1, *patches.shape[2:])
    grey = torch.zeros(()).expand(index.shape)
    rows = [
        images,
        image_of(patches.scatter(1, index, grey)),
        image_of(means[codes]),
        image_of(patches.scatter(1, index, means[guesses])),
    ]
    caption = ("From above: validation images; what the model sees, hidden patches grey; each "
               "patch as the mean patch of its code; the model's likeliest codes in the hidden "
               f"places, as mean patches. Of these {guesses.numel()} guesses "
               f"{100 * right:.0f} % are right.")  # fmt: skip
    return Figure("guesses", "Hidden patches and what is guessed", caption, png(tiles(rows)))


@torch.no_grad()
def attention_figure(
    model: Any, targets: CodeTargets, batches: Sequence[dict[str, Tensor]]
) -> Figure:
    """Show where the last layer's heads look: for the class token, if there is one.

    Nothing is hidden from the model here.
    """
    batch = batches[0]
    given = batch["images"][~batch["broken"]][:IMAGES]
    device = next(model.parameters()).device
    x = model.class_token(model.embedding(given.to(device)))
    maps = model.encoder.attention_weights(x, len(model.encoder.layers) - 1).cpu()
    asked = maps[:, :HEADS, : model.prefix or None].mean(2)[..., model.prefix :]
    side = targets.patch_size
    brightest = asked.amax(-1, keepdim=True)
    shades = (2 * asked / brightest - 1)[..., None, None, None].expand(-1, -1, -1, -1, side, side)
    seen = targets.view(given.to(device_of(targets))).cpu()
    rows = [seen, *(image_of(shades[:, head]) for head in range(shades.shape[1]))]
    rows = [row.expand(-1, seen.shape[1], -1, -1) for row in rows]
    who = "the class token" if model.prefix else "all patches on average"
    share = asked.sum(-1).mean()
    caption = (f"Above: validation images. Below: attention of {who} to the patches in the last "
               f"layer, a head in each row, the most attended patch of each white. The patches "
               f"get {100 * share:.0f} % of it.")  # fmt: skip
    return Figure("attention", "Where the last layer looks", caption, png(tiles(rows)))
