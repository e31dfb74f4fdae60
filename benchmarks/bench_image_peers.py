"""Models of other libraries for images, alone and with questions, each with its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench_cases import ANSWERS, PATCH, QUESTION, Case, draw
from benchmarks.bench_text_peers import Peer, x_transformers_layers
from benchmarks.nano_gpt import Block, plain_blocks
from benchmarks.timm_modules import with_timm


def classified(model: nn.Module, case: Case) -> Peer:
    """Return a model with the cross-entropy of its logits."""
    drawn = draw(case)
    return model, lambda: F.cross_entropy(model(drawn["images"]), drawn["labels"])


def vit(case: Case) -> Peer:
    """Return transformers' ViT with its own loss."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=case.width, num_hidden_layers=case.layers, num_attention_heads=case.heads,
        intermediate_size=4 * case.width, image_size=case.image_size, patch_size=PATCH,
        num_labels=case.vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )  # fmt: skip
    model, drawn = ViTForImageClassification(config), draw(case)
    return model, lambda: model(pixel_values=drawn["images"], labels=drawn["labels"]).loss


def timm_vit(case: Case) -> Peer:
    """Return timm's ViT."""
    transformer = with_timm("timm.models.vision_transformer").VisionTransformer
    model = transformer(
        img_size=case.image_size, patch_size=PATCH, num_classes=case.vocab_size,
        embed_dim=case.width, depth=case.layers, num_heads=case.heads,
    )  # fmt: skip
    return classified(model, case)


def x_transformers_vit(case: Case) -> Peer:
    """Return x-transformers' ViT, which averages the patches."""
    from x_transformers import ViTransformerWrapper

    model = ViTransformerWrapper(
        image_size=case.image_size, patch_size=PATCH, num_classes=case.vocab_size,
        attn_layers=x_transformers_layers(case),
    )  # fmt: skip
    return classified(model, case)


class PlainImages(nn.Module):
    """Encoder of plain torch: a convolution, a class token, learned positions, plain blocks."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.width
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, case.length + 1, width))
        self.blocks = plain_blocks(case)
        self.norm = nn.LayerNorm(width)

    def embed(self, images: Tensor) -> Tensor:
        """Images to (batch, 1 + patches, width)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat((self.class_token.expand(len(x), -1, -1), x), 1) + self.position


class PlainViT(PlainImages):
    """Image classifier of plain torch with a linear head over the class token."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.head = nn.Linear(case.width, case.vocab_size)

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits (batch, classes)."""
        return self.head(self.norm(self.blocks(self.embed(images)))[:, 0])


def plain_vit(case: Case) -> Peer:
    return classified(PlainViT(case), case)


class MultiwayBlock(nn.Module):
    """Layer of plain torch with weights of its own for patches and for words.

    Attention is over both. Patches are the first `patches` positions.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        width, self.heads, self.patches = case.width, case.heads, case.length + 1
        self.ways = nn.ModuleList(
            Block(width, case.heads, 4 * width, causal=False) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches + words, width) to the same shape."""
        batch, length, width = x.shape
        parts = x.split((self.patches, length - self.patches), 1)
        projected = [way.qkv_proj(way.attention_norm(part))
                     for way, part in zip(self.ways, parts, strict=True)]  # fmt: skip
        joined = torch.cat(projected, 1).view(batch, length, 3, self.heads, -1)
        attended = F.scaled_dot_product_attention(*joined.permute(2, 0, 3, 1, 4).unbind())
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        outputs = []
        for way, part, new in zip(
            self.ways, parts, attended.split((self.patches, length - self.patches), 1), strict=True
        ):
            part = part + way.out_proj(new)
            outputs.append(part + way.fc2(F.gelu(way.fc1(way.mlp_norm(part)))))
        return torch.cat(outputs, 1)


def answer_head(width: int) -> nn.Module:
    """Return the head of BEiT-3's authors for visual question answering."""
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU(),
        nn.Linear(2 * width, ANSWERS),
    )  # fmt: skip


class PlainAnswers(PlainImages):
    """Question answering of plain torch: one sequence of patches and words, and a head."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        width = case.width
        self.words = nn.Embedding(case.vocab_size, width)
        self.word_position = nn.Embedding(QUESTION, width)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.head = answer_head(width)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        """Images and questions to logits (questions, answers)."""
        words = self.words(questions) + self.word_position.weight
        x = self.norm(self.blocks(torch.cat((self.embed(images), words), 1)))
        return self.head(self.pooler(x[:, 0]))


def answered(model: nn.Module, case: Case) -> Peer:
    """Return a model with the binary cross-entropy of all answers."""
    drawn = draw(case)
    targets = F.one_hot(drawn["labels"], ANSWERS).float()

    def loss() -> Tensor:
        logits = model(drawn["images"], drawn["questions"])
        return F.binary_cross_entropy_with_logits(logits, targets)

    return model, loss


def plain_answers(case: Case) -> Peer:
    """Return the plain model with one set of weights for patches and words."""
    return answered(PlainAnswers(case), case)


def multiway_answers(case: Case) -> Peer:
    """Return the plain model with a set of weights for patches and another for words."""
    model = PlainAnswers(case)
    model.blocks = nn.Sequential(*(MultiwayBlock(case) for _ in range(case.layers)))
    return answered(model, case)


def vilt(case: Case) -> Peer:
    """Return transformers' ViLT with its own loss."""
    from transformers import ViltConfig, ViltForQuestionAnswering

    config = ViltConfig(
        vocab_size=case.vocab_size, hidden_size=case.width, num_hidden_layers=case.layers,
        num_attention_heads=case.heads, intermediate_size=4 * case.width,
        max_position_embeddings=QUESTION, image_size=case.image_size, patch_size=PATCH,
        num_labels=ANSWERS, max_image_length=-1,
    )  # fmt: skip
    model, drawn = ViltForQuestionAnswering(config), draw(case)
    targets = F.one_hot(drawn["labels"], ANSWERS).float()
    side = case.image_size
    given = {"input_ids": drawn["questions"], "pixel_values": drawn["images"],
             "attention_mask": torch.ones_like(drawn["questions"]),
             "pixel_mask": torch.ones(case.batch, side, side).long()}  # fmt: skip
    return model, lambda: model(**given, labels=targets).loss
