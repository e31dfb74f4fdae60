"""BEiT-3's models as their authors build them: torchscale's encoder and heads, written anew.

Names and arithmetic follow unilm's beit3/modeling_finetune.py; nothing of ours is in them.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.unit.nn import grids

WIDTH, HEADS, LAYERS, INNER, WORDS, SIDE = 32, 4, 3, 48, 40, 12
ARGS = {"encoder_attention_heads": HEADS}
# Text positions that are there, and patches and a class token.
TEXT, IMAGE = 18, 10


def beit3(normalize_output: bool = True, **others: Any) -> nn.Module:
    """torchscale's own BEiT3; skips where it is not installed."""
    pytest.importorskip("torchscale")
    package = grids.timm_module("torchscale.model.BEiT3")
    from torchscale.architecture.config import EncoderConfig

    values = {
        "img_size": SIDE, "patch_size": 4, "vocab_size": WORDS, "multiway": True,
        "layernorm_embedding": False, "normalize_output": normalize_output,
        "no_output_layer": True, "encoder_layers": LAYERS, "encoder_embed_dim": WIDTH,
        "encoder_attention_heads": HEADS, "encoder_ffn_embed_dim": INNER,
        "max_source_positions": TEXT + 2,
    }  # fmt: skip
    return package.BEiT3(EncoderConfig(**{**values, **others}))


class Authors(nn.Module):
    """An encoder; calls of it tell all parts where the texts begin."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.beit3 = encoder

    def encode(self, words: Tensor | None, images: Tensor | None, padding: Any, **more) -> Tensor:
        from torchscale.component.multiway_network import set_split_position

        # A part keeps the position of the last call for calls that name none.
        self.beit3.apply(set_split_position(-1 if words is None else IMAGE * (images is not None)))
        found = self.beit3(
            textual_tokens=words, visual_tokens=images, text_padding_position=padding, **more
        )
        return found["encoder_out"]


class Answering(Authors):
    def __init__(self, encoder: nn.Module, answers: int = 7) -> None:
        super().__init__(encoder)
        self.pooler = nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "dense": nn.Linear(WIDTH, WIDTH)})
        self.head = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(2 * WIDTH), nn.GELU(),
            nn.Linear(2 * WIDTH, answers),
        )  # fmt: skip

    def forward(self, images: Tensor, words: Tensor, padding: Tensor) -> Tensor:
        first = self.encode(words, images, padding)[:, 0]
        return self.head(torch.tanh(self.pooler["dense"](self.pooler["norm"](first))))


class Reasoning(Authors):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        parts = {"norm1": nn.LayerNorm(4 * WIDTH), "dense1": nn.Linear(4 * WIDTH, 2 * WIDTH),
                 "norm2": nn.LayerNorm(2 * WIDTH), "dense2": nn.Linear(2 * WIDTH, 2)}  # fmt: skip
        self.head = nn.ModuleDict(parts)

    def forward(self, left: Tensor, right: Tensor, words: Tensor, padding: Tensor) -> Tensor:
        read = [self.encode(words, images, padding) for images in (left, right)]
        x = torch.cat([x[:, place] for x in read for place in (0, IMAGE)], dim=-1)
        inner = self.head["norm2"](self.head["dense1"](self.head["norm1"](x)))
        return self.head["dense2"](F.gelu(inner))


class Retrieving(Authors):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.language_head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.vision_head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, images: Tensor, words: Tensor, padding: Tensor) -> tuple[Tensor, ...]:
        image = self.vision_head(self.encode(None, images, None)[:, 0])
        text = self.language_head(self.encode(words, None, padding)[:, 0])
        return F.normalize(image, dim=-1), F.normalize(text, dim=-1), self.logit_scale.exp()


class Captioning(Authors):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.mlm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, images: Tensor, words: Tensor, padding: Tensor, asked: Tensor) -> Tensor:
        length = words.shape[1]
        hidden = torch.ones(IMAGE + length, IMAGE + length).triu(1)
        hidden[:IMAGE, :IMAGE] = 0
        texts = self.encode(words, images, padding, attn_mask=hidden)[:, IMAGE:]
        return self.mlm_head(texts[asked])


class Pretraining(Authors):
    """What the pre-trained weights have: a linear head for words, and one for patches."""

    def __init__(self, encoder: nn.Module, codes: int = 6) -> None:
        super().__init__(encoder)
        self.mlm_head = nn.Linear(WIDTH, WORDS)
        self.mim_head = nn.Linear(WIDTH, codes)

    def forward(
        self, images: Tensor, words: Tensor, padding: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = self.encode(words, images, padding, vision_masked_position=hidden)
        return self.mim_head(x[:, 1:IMAGE][hidden]), self.mlm_head(x[:, IMAGE:])


def shaken(model: nn.Module) -> nn.Module:
    """No weight is neutral, and no half like the other; rows that are never read are zeros."""
    torch.manual_seed(1)
    for name, parameter in grids.shaken(model).named_parameters():
        if ".embed_positions." in name:
            parameter.data[:2] = 0
    return model
