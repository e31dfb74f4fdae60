"""A small GPT in plain torch.

It has Pre-LN, one projection for queries, keys and values, torch's attention, exact GELU, learned
positions and a tied head. The plain models of other fields use its blocks too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench_cases import Case


class Block(nn.Module):
    """One layer; with `causal`, a position attends only to itself and earlier ones."""

    def __init__(self, width: int, heads: int, ffn_width: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, ffn_width), nn.Linear(ffn_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        projected = self.qkv_proj(self.attention_norm(x))
        parts = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(), is_causal=self.causal)
        x = x + self.out_proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.fc2(F.gelu(self.fc1(self.mlp_norm(x))))


def plain_blocks(case: Case) -> nn.Sequential:
    """Return the layers of a case, in which every position attends to all."""
    return nn.Sequential(
        *(Block(case.width, case.heads, case.ffn_width, causal=False) for _ in range(case.layers))
    )


class NanoGPT(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embedding = nn.Embedding(case.vocab_size, case.width)
        self.position = nn.Embedding(case.length, case.width)
        self.blocks = nn.ModuleList(
            Block(case.width, case.heads, case.ffn_width) for _ in range(case.layers)
        )
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, case.vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                last = name.endswith(("out_proj.weight", "fc2.weight"))
                nn.init.normal_(parameter, std=0.02 * (2 * case.layers) ** (-0.5 * last))

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict what follows each token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
