"""Figures of image models: confusion matrices, mistakes, attention, codes, segmentations."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.figures import Panel, confusion_matrix, image_panels
from magneto.training.task import Figure
from magneto.vision.config import IGNORED
from magneto.vision.models import ImageEncoder
from magneto.vision.transforms import InputFormat, with_channels

# Figure of codes: rows, and patches in each row.
CODES, PATCHES = 16, 16
# Other figures: images in a row, heads, mistakes in a row, letters of a class's name.
IMAGES, HEADS, COLUMNS, LONGEST = 8, 6, 4, 20
# Smallest width in inches of rows of images. Side in inches of a panel that shows a mistake;
# smallest side of a segmentation's panel. The most image pixels that a panel of rows or of a
# segmentation shows per inch.
ACROSS, MISTAKE, OVERLAY, DPI = 6.4, 1.8, 3.8, 94
# Opacity of a class's colour. Step of the hue from one class to the next: the golden section, so
# that no two of few classes look alike.
OPACITY, HUE_STEP = 0.55, 0.6180339887498949


def readable(batches: Iterable[dict[str, Tensor]], count: int, *names: str) -> list[Tensor]:
    kept = [[batch[name][~batch["broken"]] for name in names] for batch in islice(batches, count)]
    return [torch.cat(parts) for parts in zip(*kept, strict=True)]


@torch.no_grad()
def codes_of(
    encode: Callable[[Tensor], Tensor], images: Tensor, device: torch.device, at_once: int = 64
) -> Tensor:
    return torch.cat([encode(some.to(device)).cpu() for some in images.split(at_once)])


def patches_of(images: Tensor, size: int) -> Tensor:
    """Split images (count, channels, height, width) into (count, patches, channels, size, size)."""
    cut = F.unfold(images, size, stride=size).transpose(1, 2)
    return cut.unflatten(-1, (images.shape[1], size, size))


def image_of(patches: Tensor) -> Tensor:
    """Assemble square images from their patches (count, patches, channels, size, size)."""
    side, size = round(patches.shape[1] ** 0.5), patches.shape[-1]
    columns = patches.flatten(2).transpose(1, 2)
    return F.fold(columns, (side * size, side * size), size, stride=size)


def mean_patches(images: Tensor, codes: Tensor, count: int, size: int) -> Tensor:
    """Return the mean of each code's patches, (count, channels, size, size).

    A code without patches gets a mean of 0, drawn in grey.
    """
    patches = patches_of(images, size).flatten(0, 1)
    sums = torch.zeros(count, *patches.shape[1:]).index_add(0, codes.flatten(), patches)
    times = codes.flatten().bincount(minlength=count).clamp(min=1)
    return sums / times[:, None, None, None]


def tiles(rows: Sequence[Tensor]) -> bytes:
    """Draw rows of images as a PNG. Images are (count, channels, height, width) in [-1, 1]."""
    pixels = ((torch.cat(list(rows)).clamp(-1, 1) + 1) * 127.5).round().byte().movedim(1, -1)
    panels, columns = [Panel(image) for image in pixels.numpy()], len(rows[0])
    side = max(ACROSS / columns, max(pixels.shape[1:3]) / DPI)
    return image_panels([("", panels)], columns, side)


def short(names: Sequence[str], number: int) -> str:
    """Return a class's name up to its first comma, cut to `LONGEST` characters."""
    word = names[number].partition(",")[0] if number < len(names) else str(number)
    return word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"


def confusion_figure(counts: np.ndarray, names: Sequence[str], what: str) -> Figure:
    """Draw a confusion matrix. `what` is the caption's word for the items, such as "images"."""
    words = [short(names, number) for number in range(len(counts))]
    drawn, hidden = confusion_matrix(counts, words)
    right, total = int(np.trace(counts)), int(counts.sum())
    more = f" {hidden} rarer classes are left out." if hidden else ""
    caption = (
        f"The model predicts the right class for {right:,} of {total:,} validation {what} "
        f"({right / max(total, 1):.1%}). Rows are true classes, and columns are predicted "
        f"classes. Each number is a percentage of its row. Numbers below 5 % are not shown.{more}"
    )
    return Figure("confusion", "Confusion matrix", caption, drawn)


def mistakes_figure(images: Tensor, words: Sequence[str], input_format: InputFormat) -> Figure:
    """Draw wrongly classified images. `words` has one text for each image."""
    caption = (
        f"The {len(images)} most confident wrong predictions. Each image has its label, the "
        "predicted class, and the probability of that class."
    )
    panels = [Panel(input_format.restore(image.numpy()), said)
              for image, said in zip(images, words, strict=True)]  # fmt: skip
    image = image_panels([("", panels)], COLUMNS, MISTAKE)
    return Figure("mistakes", "Most confident mistakes", caption, image)


@torch.no_grad()
def attention_figure(model: ImageEncoder, images: Tensor, seen: Tensor, asking: slice) -> Figure:
    """Draw the last layer's attention to each patch.

    `images` are the model's input, and `seen` are the same images in [-1, 1]. `asking` selects
    query positions, over which the attention is averaged.
    """
    config, device = model.config, next(model.parameters()).device
    x = model.embed(images.to(device))
    found = model.encoder.attention_weights(x, config.layers - 1).cpu()
    asked = found[:, :, asking].mean(2)[..., config.prefix :]
    rows = [asked.mean(1), *asked[:, :HEADS].unbind(1)]
    brightest = [2 * row / row.amax(1, keepdim=True) - 1 for row in rows]
    patch = seen.new_ones(1, 1, seen.shape[1], config.patch_size, config.patch_size)
    maps = [image_of(row[:, :, None, None, None] * patch) for row in brightest]
    who, over = "the patches", "all heads and query patches"
    if config.prefix and asking.stop == 1:
        who, over = "the class token", "all heads"
    caption = (
        f"First row: validation images. Second row: attention of {who} to each patch in the last "
        f"layer, averaged over {over}. Other rows: attention of {len(rows) - 1} single heads. "
        f"The patch with most attention is white. {float(asked.sum(-1).mean()):.0%} of the "
        "attention goes to patches."
    )
    return Figure("attention", "Attention in the last layer", caption, tiles([seen, *maps]))


def codes_figure(images: Tensor, codes: Tensor, count: int, size: int) -> Figure:
    """Draw a row of patches for each code, from frequent to rare codes.

    `count` is the number of codes. `size` is the height and width of a patch in pixels.
    """
    patches, flat = patches_of(images, size).flatten(0, 1), codes.flatten()
    times = flat.bincount(minlength=count)
    used = int((times > 0).sum())
    order = times.argsort(descending=True, stable=True)[:used]
    chosen = order[torch.linspace(0, used - 1, min(CODES, used)).long()]
    draw = torch.Generator().manual_seed(0)
    rows = []
    for code in chosen:
        matching = patches[flat == code]
        some = matching[torch.randperm(len(matching), generator=draw)[:PATCHES]]
        white = torch.ones(PATCHES - len(some), *some.shape[1:])
        rows.append(torch.cat((some, white)))
    numbers = ", ".join(f"{int(times[code]):,}" for code in chosen)
    caption = (f"The patches of a row have the same code. {used} of {count} codes occur in the "
               f"validation images. The rows show {len(chosen)} codes, from the most frequent "
               f"code to the rarest code that occurs. Numbers of patches, in the order of the "
               f"rows: {numbers}.")  # fmt: skip
    return Figure("codes", "Patches that share a code", caption, tiles(rows))


def reconstruction_figure(images: Tensor, codes: Tensor, count: int, size: int) -> Figure:
    """Draw images, and below them copies with each patch replaced by the mean patch of its code.

    For the arguments, see `codes_figure`.
    """
    rebuilt = image_of(mean_patches(images, codes, count, size)[codes])
    error = (rebuilt - images).square().mean() / (images - images.mean(0)).square().mean()
    caption = ("Above: validation images. Below: each patch is replaced by the mean of all "
               "validation patches with its code. The codes leave "
               f"{100 * error:.0f} % of the variance of the pixels unexplained. Training "
               "does not minimise the unexplained variance.")  # fmt: skip
    picture = tiles([images[:IMAGES], rebuilt[:IMAGES]])
    return Figure("reconstructions", "Reconstructions from codes", caption, picture)


def guesses_figure(
    images: Tensor, codes: Tensor, hidden: Tensor, guesses: Tensor, count: int, size: int
) -> Figure:
    """Draw images, their visible patches, the mean patches of their codes, and the predictions.

    If `hidden` has n rows, the first n images are drawn. `hidden` (drawn images, masked patches)
    has the indices of masked patches. `guesses` has the predicted codes, shaped like `hidden`. For
    the other arguments, see `codes_figure`.
    """
    means, some = mean_patches(images, codes, count, size), len(hidden)
    right = (guesses == codes[:some].gather(1, hidden)).float().mean()
    patches = patches_of(images[:some], size)
    index = hidden[:, :, None, None, None].expand(-1, -1, *patches.shape[2:])
    rows = [
        images[:some],
        image_of(patches.scatter(1, index, 0.0)),
        image_of(means[codes[:some]]),
        image_of(patches.scatter(1, index, means[guesses])),
    ]
    caption = ("First row: validation images. Second row: the model's input, with masked patches "
               "in grey. Third row: each patch is replaced by the mean patch of its code. Fourth "
               "row: each masked patch is replaced by the mean patch of the most probable code. "
               f"{100 * right:.0f} % of the {guesses.numel()} predictions are "
               "right.")  # fmt: skip
    return Figure("guesses", "Masked patches and predictions", caption, tiles(rows))


def class_colours(count: int) -> np.ndarray:
    """Return a colour per class, uint8 (count, 3). A class's colour does not depend on `count`."""
    levels = ((0.85, 0.95), (0.55, 1.0), (0.9, 0.65))
    rows = [colorsys.hsv_to_rgb(i * HUE_STEP % 1, *levels[i % 3]) for i in range(count)]
    return (np.array(rows) * 255).round().astype(np.uint8)


def overlay(pixels: np.ndarray, classes: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Blend an image with the colours of its classes; return uint8 (height, width, 3).

    `pixels` are uint8 (height, width, channels), `classes` are (height, width), and `colours` are
    (number of classes, 3). Pixels whose class is `IGNORED` keep their colour.
    """
    base = with_channels(pixels, 3).astype(np.float32)
    known = classes != IGNORED
    painted = colours[np.where(known, classes, 0)]
    mixed = base + OPACITY * (painted - base)
    return np.where(known[..., None], mixed, base).round().astype(np.uint8)


def overlay_panels(
    panels: Sequence[Panel], shown: Sequence[np.ndarray], names: Sequence[str]
) -> bytes:
    """Draw panels in a row, beside a legend that has the most frequent class first."""
    counts = np.bincount(np.concatenate([x.ravel() for x in shown]), minlength=256)[: len(names)]
    order = [number for number in np.argsort(-counts, kind="stable") if counts[number]]
    shares, colours = 100 * counts / max(counts.sum(), 1), class_colours(len(names)) / 255
    legend = [(colours[number], f"{names[number]}  {shares[number]:.3g} %") for number in order]
    side = max(OVERLAY, max(shown[0].shape) / DPI)
    return image_panels([("", panels)], len(panels), side, legend)


def overlay_png(image: np.ndarray, classes: np.ndarray, names: Sequence[str]) -> bytes:
    """Return a PNG of an image with its segmentation and a legend; see `overlay`."""
    painted = overlay(image, classes, class_colours(len(names)))
    return overlay_panels([Panel(painted)], [classes], names)


def overlay_figure(
    number: int,
    name: str,
    pixels: np.ndarray,
    mask: np.ndarray,
    answer: np.ndarray,
    names: Sequence[str],
) -> Figure:
    """Draw an image, its mask and the model's segmentation side by side; see `overlay`.

    `number` distinguishes the figures of a report, because two images may have the same `name`.
    """
    colours, known = class_colours(len(names)), mask != IGNORED
    right = (answer == mask)[known].mean() if known.any() else 0.0
    panels = [Panel(with_channels(pixels, 3), "image"),
              Panel(overlay(pixels, mask, colours), "mask"),
              Panel(overlay(pixels, answer, colours), "model")]  # fmt: skip
    return Figure(
        f"segmentation-{number}",
        f"Segmentation of {name.rpartition('/')[2]}",
        f"The image, its mask and the model's segmentation. The segmentation is right for "
        f"{right:.1%} of the pixels that have a class. The legend counts the pixels of mask and "
        "segmentation together, and gives each class's share.",
        overlay_panels(panels, [mask, answer], names),
    )
