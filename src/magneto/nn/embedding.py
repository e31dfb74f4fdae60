"""Embeddings of tokens and of image patches, and the class token before them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


class TextEmbedding(nn.Module):
    """A table of token vectors, N(0, 1/width), and their scale."""

    def __init__(self, vocab_size: int, width: int, scale: Literal["none", "sqrt_width"]) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.scale = width**0.5 if scale == "sqrt_width" else 1.0
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) token numbers to (batch, length, width)."""
        return self.table(tokens) * self.scale


class PatchEmbedding(nn.Module):
    """A linear map of each patch; Xavier, never scaled by a placement's gain."""

    def __init__(self, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        nn.init.xavier_uniform_(self.proj.weight.view(width, -1))
        nn.init.zeros_(self.proj.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width), row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class ClassToken(nn.Module):
    """A learned vector before the patches; zero at first, as in ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches, width) to (batch, 1 + patches, width)."""
        return torch.cat((self.vector.expand(len(x), 1, -1), x), dim=1)
