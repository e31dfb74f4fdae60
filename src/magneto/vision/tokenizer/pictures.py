"""Pictures of what codes look like: patches that share one, and images made of codes."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.training.task import Figure

# Of the picture of codes: rows and patches in each. Of images: how many.
CODES, PATCHES, IMAGES = 16, 16, 8
# Width that a picture has about, in pixels, and the white between its tiles.
WIDTH, GAP = 640, 2


def readable_batches(batches: Sequence[dict[str, Tensor]], count: int) -> list[dict[str, Tensor]]:
    """Return those of the first `count` batches in which an image could be read."""
    return [batch for batch in islice(batches, count) if not batch["broken"].all()]


def seen_codes(
    encode: Callable[[Tensor], Tensor], batches: Sequence[dict[str, Tensor]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the images of batches that could be read, and the codes of their patches.

    Args:
        encode: From images on the device to codes.
        batches: With "images" and "broken".
        device: Of the tokenizer.

    Returns:
        Images (count, channels, height, width) and codes (count, patches), on the CPU.
    """
    kept = [batch["images"][~batch["broken"]] for batch in batches]
    with torch.no_grad():
        codes = [encode(images.to(device)).cpu() for images in kept]
    return torch.cat(kept), torch.cat(codes)


def patches_of(images: Tensor, size: int) -> Tensor:
    """Cut (count, channels, height, width) into (count, patches, channels, size, size)."""
    cut = F.unfold(images, size, stride=size).transpose(1, 2)
    return cut.unflatten(-1, (images.shape[1], size, size))


def image_of(patches: Tensor) -> Tensor:
    """Put (count, patches, channels, size, size) of square images together again."""
    side, size = round(patches.shape[1] ** 0.5), patches.shape[-1]
    columns = patches.flatten(2).transpose(1, 2)
    return F.fold(columns, (side * size, side * size), size, stride=size)


def mean_patches(images: Tensor, codes: Tensor, count: int, size: int) -> Tensor:
    """Return the mean of the patches of each code, (count, channels, size, size).

    A code that no patch has is grey: 0.
    """
    patches = patches_of(images, size).flatten(0, 1)
    sums = torch.zeros(count, *patches.shape[1:]).index_add(0, codes.flatten(), patches)
    times = codes.flatten().bincount(minlength=count).clamp(min=1)
    return sums / times[:, None, None, None]


def tiles(rows: Sequence[Tensor]) -> np.ndarray:
    """Lay images out on white, enlarged without smoothing.

    Args:
        rows: Of each row of the picture, images (count, channels, height, width) in [-1, 1], as
            many and of the same size.

    Returns:
        uint8 (height, width, 3).
    """
    images = torch.stack(list(rows)).clamp(-1, 1)
    images = images.expand(-1, -1, 3, -1, -1) if images.shape[2] == 1 else images
    scale = max(1, round(WIDTH / (images.shape[1] * images.shape[4])))
    large = images.repeat_interleave(scale, -1).repeat_interleave(scale, -2)
    framed = F.pad(large, (0, GAP, 0, GAP), value=1.0)
    whole = framed.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    return ((whole[:-GAP, :-GAP] + 1) * 127.5).round().byte().numpy()


def png(pixels: np.ndarray) -> bytes:
    """Return uint8 (height, width, 3) as a PNG file, which has no date in it."""
    from matplotlib.image import imsave

    made = io.BytesIO()
    imsave(made, pixels, format="png", metadata={"Software": "Magneto"})
    return made.getvalue()


def codes_figure(tokenizer: Any, batches: Sequence[dict[str, Tensor]]) -> Figure:
    """Show patches that share a code: a row each, of codes from the commonest to the rarest used.

    Args:
        tokenizer: An `ImageTokenizer`, on its device.
        batches: Of images in [-1, 1].
    """
    images, codes = seen_codes(tokenizer.encode, batches, device_of(tokenizer))
    size, flat = tokenizer.config.patch_size, codes.flatten()
    patches = patches_of(images, size).flatten(0, 1)
    times = flat.bincount(minlength=tokenizer.config.codes)
    used = int((times > 0).sum())
    order = times.argsort(descending=True, stable=True)[:used]
    chosen = order[torch.linspace(0, used - 1, min(CODES, used)).long()]
    draw = torch.Generator().manual_seed(0)
    rows = []
    for code in chosen:
        there = patches[flat == code]
        some = there[torch.randperm(len(there), generator=draw)[:PATCHES]]
        white = torch.ones(PATCHES - len(some), *some.shape[1:])
        rows.append(torch.cat((some, white)))
    numbers = ", ".join(f"{int(times[code]):,}" for code in chosen)
    caption = (f"Each row: patches of validation images that have the same code, {len(chosen)} "
               f"codes from the commonest to the rarest of {used} that occur (of "
               f"{tokenizer.config.codes}). Patches that have them: {numbers}.")  # fmt: skip
    return Figure("codes", "Patches that share a code", caption, png(tiles(rows)))


def reconstruction_figure(tokenizer: Any, batches: Sequence[dict[str, Tensor]]) -> Figure:
    """Show images above the same images with each patch replaced by the mean patch of its code."""
    images, codes = seen_codes(tokenizer.encode, batches, device_of(tokenizer))
    size = tokenizer.config.patch_size
    means = mean_patches(images, codes, tokenizer.config.codes, size)
    rebuilt = image_of(means[codes[:IMAGES]])
    every = image_of(means[codes])
    error = (every - images).square().mean() / (images - images.mean(0)).square().mean()
    caption = ("Above: validation images. Below: each patch is the mean of all validation patches "
               "that have its code. What the code leaves open of the pixels is "
               f"{100 * error:.0f} % of their variance; the codes were not made to tell "
               "them.")  # fmt: skip
    picture = tiles([images[:IMAGES], rebuilt])
    return Figure("reconstructions", "Images made of codes", caption, png(picture))


def device_of(module: nn.Module) -> torch.device:
    """Return where a module's tensors are."""
    return next(module.buffers()).device
