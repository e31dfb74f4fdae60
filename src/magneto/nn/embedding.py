"""Embeddings of tokens and image patches, class token, and mask token."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from magneto.nn.init import NORMAL_STD


class VectorTable(nn.Embedding):
    """Table of learned vectors, initially N(0, std²). For a std of 0 all values are zero."""

    def __init__(self, count: int, width: int, std: float) -> None:
        self.std = std
        super().__init__(count, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)


class TextEmbedding(nn.Module):
    """Embedding table of tokens, initially N(0, 1/width).

    With the scale "sqrt_width", embeddings are multiplied by sqrt(width).
    """

    def __init__(
        self, vocab_size: int | None, width: int, scale: Literal["none", "sqrt_width"]
    ) -> None:
        super().__init__()
        if vocab_size is None:
            raise ValueError("vocab_size is not set. Set it to the tokenizer's number of tokens.")
        self.table = VectorTable(vocab_size, width, std=width**-0.5)
        self.scale = width**0.5 if scale == "sqrt_width" else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens: (batch, length) to (batch, length, width)."""
        return self.scaled(self.table(tokens))

    def scaled(self, vectors: Tensor) -> Tensor:
        """Multiply vectors (batch, length, width) by `self.scale`."""
        return vectors * self.scale


class PatchProjection(nn.Conv2d):
    """Convolution of non-overlapping patches.

    The weights are initially Xavier uniform. The bias is initially 0.
    """

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__(channels, width, patch_size, stride=patch_size)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight.view(len(self.weight), -1))
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


class PatchEmbedding(nn.Module):
    """Linear map of each patch. The initial weights do not depend on the norm placement."""

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.proj = PatchProjection(channels, patch_size, width)

    def forward(self, images: Tensor) -> Tensor:
        """Embed patches row by row: (batch, channels, height, width) to (batch, patches, width)."""
        return self.proj(images).flatten(2).transpose(1, 2)


class ConvolutionalStem(nn.Module):
    """Convolutional stem: strided convolutions with norm and GELU (arXiv 2106.14881).

    The strides are the prime factors of the patch size, so there is one vector per patch. An
    additional convolution with stride 1 follows the first convolution. Neither norm nor GELU
    follows the final convolution. The vector of a patch also depends on pixels around the patch.
    This overlap helps if there are few training images. Weights have torch's initialisation.
    """

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        strides = prime_factors(patch_size) or [1]
        strides = [strides[0], 1, *strides[1:]]
        sizes = [channels, *[max(width // 2, 1)] * (len(strides) - 1), width]
        parts: list[nn.Module] = []
        for stride, inner, outer in zip(strides, sizes, sizes[1:], strict=False):
            kernel = stride + 1 + stride % 2  # odd, and larger than the stride
            parts.append(nn.Conv2d(inner, outer, kernel, stride, padding=kernel // 2))
            parts += [nn.GroupNorm(1, outer), nn.GELU()]
        self.layers = nn.Sequential(*parts[:-2])

    def forward(self, images: Tensor) -> Tensor:
        """Embed patches row by row: (batch, channels, height, width) to (batch, patches, width)."""
        return self.layers(images).flatten(2).transpose(1, 2)


def prime_factors(number: int) -> list[int]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *prime_factors(number // factor)]
    return []


class ClassToken(nn.Module):
    """Class token: a learned vector before the patches, initially 0 as in ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.vector)

    def forward(self, x: Tensor) -> Tensor:
        """Prepend the class token: (batch, patches, width) to (batch, 1 + patches, width)."""
        return torch.cat((self.vector.expand(len(x), 1, -1), x), dim=1)


class MaskToken(nn.Module):
    """Mask token: a learned vector in place of masked patches.

    As in BEiT, the vector is initially N(0, 0.02²).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vector, std=NORMAL_STD)

    def forward(self, patches: Tensor, hidden: Tensor | None) -> Tensor:
        """Replace masked patches.

        Args:
            patches: Vectors of the patches, (batch, patches, width).
            hidden: Mask of the patches to replace, boolean (batch, patches), or None for no patch.
        """
        if hidden is None:
            return patches
        return torch.where(hidden[..., None], self.vector.to(patches.dtype), patches)
