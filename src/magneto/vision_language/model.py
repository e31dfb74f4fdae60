"""Multiway encoder of images and texts, and the models that contain this encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.functional.cross_entropy import (
    CrossEntropyLoss,
    linear_cross_entropy,
    without_autocast,
)
from magneto.nn.embedding import ClassToken, MaskToken, PatchEmbedding, TextEmbedding, VectorTable
from magneto.nn.init import NORMAL_STD, NormalLinear, build_norm
from magneto.nn.multiway import MultiwayEncoder, Streams
from magneto.nn.position import resize_table
from magneto.vision.config import require
from magneto.vision_language.config import (
    IMAGES,
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    MaskedDataModelConfig,
    QuestionAnsweringConfig,
    VisionLanguageConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.samples import MaskedSamples, Samples

# Suffixes of the names of position tables in a `VisionLanguageEncoder`.
IMAGE_POSITIONS = "vision_embedding.positions.weight"
TEXT_POSITIONS = "text_embedding.positions.weight"
# Labels of a statement, in the order of their numbers.
ANSWERS = ("False", "True")
# Largest scale of similarities (CLIP, arXiv 2103.00020).
LARGEST_SCALE = 100.0

Pooling = Callable[[Tensor, Tensor, Samples], Tensor]
"""Function that pools a batch's features to one vector for each image, or for each text. The
arguments are image features, text features and samples."""


class VisionEmbedding(nn.Module):
    """Embedding of images: class token and patches, with learned positions."""

    def __init__(self, config: VisionLanguageConfig, mask_token: nn.Module | None) -> None:
        super().__init__()
        width = config.width
        _, patch_size, channels = config.input_sizes
        self.patches = PatchEmbedding(channels, patch_size, width)
        self.mask_token = mask_token
        self.class_token = ClassToken(width)
        self.positions = VectorTable(config.image_tokens, width, std=width**-0.5)

    def forward(self, images: Tensor, hidden: Tensor | None) -> Tensor:
        patches = self.patches(images)
        if self.mask_token is not None:
            patches = self.mask_token(patches, hidden)
        patches = self.class_token(patches)
        places = torch.arange(patches.shape[1], device=patches.device)
        return (patches + self.positions(places)).flatten(0, 1)


class PackedTextEmbedding(nn.Module):
    """Embedding of packed text tokens, with learned positions."""

    def __init__(self, config: VisionLanguageConfig) -> None:
        super().__init__()
        width = config.width
        self.words = TextEmbedding(config.vocab_size, width, config.embedding_scale)
        self.positions = VectorTable(config.max_length, width, std=width**-0.5)

    def forward(self, samples: Samples) -> Tensor:
        return self.words(samples.token_ids) + self.positions(samples.token_positions)


class VisionLanguageEncoder(nn.Module):
    """Embeddings of images and texts, and a Multiway Transformer that reads both.

    A model that can start from a pre-trained encoder must have its encoder in the attribute
    `encoder`. `config.vocab_size` must be set. `mask_token` replaces masked patches. If
    `mask_token` is None, patches are never masked.
    """

    def __init__(self, config: VisionLanguageConfig, mask_token: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.vision_embedding = VisionEmbedding(config, mask_token)
        self.text_embedding = PackedTextEmbedding(config)
        self.transformer = MultiwayEncoder(config)
        if config.final_norm == "none":
            names = self.transformer.final_norm
            self.transformer.final_norm = nn.ModuleDict({name: nn.Identity() for name in names})

    def forward(self, images: Tensor, samples: Samples, hidden: Tensor | None = None) -> Streams:
        """Return the features of vision tokens and of language tokens, each (tokens, width).

        `images` is (images, channels, height, width). Images without a text come first, then the
        images of pairs. `samples` comes from `join_samples`. `hidden` is True for masked patches,
        boolean (images, patches).
        """
        vision, language = self.embed(images, samples, hidden)
        return self.transformer(vision, language, samples.packing)

    def embed(self, images: Tensor, samples: Samples, hidden: Tensor | None = None) -> Streams:
        return self.vision_embedding(images, hidden), self.text_embedding(samples)

    @torch.no_grad()
    def attention_weights(self, images: Tensor, samples: Samples, layer: int) -> Tensor:
        """Return the attention weights of a layer, (samples, heads, queries, keys).

        Layer 0 is the bottom layer. In a pair, the tokens of the image come before the tokens of
        the text.
        """
        vision, language = self.embed(images, samples)
        return self.transformer.attention_weights(vision, language, samples.packing, layer)


def interpolate_positions(
    state: Mapping[str, Tensor], old: VisionLanguageConfig, new: VisionLanguageConfig
) -> dict[str, Tensor]:
    """Adapt an encoder's tensors to another image size or to shorter texts.

    Position embeddings of patches are interpolated (bicubic), as in the released BEiT-3. The
    position embedding of the class token stays the same. The first `new.max_length` text positions
    are kept.

    Raises:
        ValueError: If `new.max_length` is larger than `old.max_length`.
    """
    if new.max_length > old.max_length:
        raise ValueError(f"model.pretrained has texts of at most {old.max_length} tokens: give "
                         f"--model.max_length {old.max_length} or less")  # fmt: skip
    made = dict(state)
    for name, tensor in state.items():
        if name.endswith(IMAGE_POSITIONS):
            made[name] = resize_table(tensor, old.grid, new.grid)
        elif name.endswith(TEXT_POSITIONS):
            made[name] = tensor[: new.max_length]
    return made


def first_of_image(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    return vision.index_select(0, samples.image_starts)


def mean_of_image(image_tokens: int, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    return vision.unflatten(0, (-1, image_tokens))[:, 1:].mean(dim=1)


def first_of_text(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    return language.index_select(0, samples.text_starts)


def mean_of_text(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    starts, ends = samples.text_starts[:, None], samples.text_ends[:, None]
    places = torch.arange(len(language), device=language.device)
    own = (places >= starts) & (places <= ends)
    # A product, since sums by index on a GPU have no fixed order.
    return own.to(language.dtype) @ language / (ends - starts + 1).to(language.dtype)


def mask_of_text(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    return language.index_select(0, samples.text_ends - 1)


def pool_pairs(parts: Sequence[Pooling], streams: Streams, samples: Samples) -> Tensor:
    vision, language = streams
    read = torch.cat([part(vision, language, samples) for part in parts], dim=-1)
    # The head may not read one modality. Adding an empty sum gives the top layer of that modality
    # gradients of zeros. Without gradients, ranks would wait for them.
    return read + vision[:0].sum() + language[:0].sum()


class MaskedDataModel(nn.Module):
    """Pre-training model: an encoder, one head for masked patches and one head for masked words."""

    def __init__(self, config: MaskedDataModelConfig) -> None:
        super().__init__()
        self.config = config
        width, codes = config.width, require(config.codes, "codes")
        self.encoder = VisionLanguageEncoder(config, MaskToken(width))
        self.patch_head = NormalLinear(width, codes, bias=True, std=NORMAL_STD)
        words = require(config.vocab_size, "vocab_size")
        self.word_head = NormalLinear(width, words, bias=True, std=NORMAL_STD)

    def forward(
        self,
        images: Tensor,
        masked: MaskedSamples,
        codes: Tensor | None = None,
        words: Tensor | None = None,
    ) -> Any:
        """Return logits, or losses if both `codes` and `words` are given.

        Logits are (masked patches, codes) and (masked words, vocab_size). The losses are the summed
        cross-entropy of patches and the summed cross-entropy of words. `codes` (masked patches,)
        and `words` (masked words,) are targets. A position with the target -100 does not add to the
        loss.
        """
        vision, language = self.encoder(images, masked.samples, masked.hidden)
        # A class token precedes each image's patches.
        places = masked.patches + masked.patches // self.config.patches + 1
        read = (vision.index_select(0, places), language.index_select(0, masked.words))
        heads = (self.patch_head, self.word_head)
        if codes is None or words is None:
            return tuple(head(features) for head, features in zip(heads, read, strict=True))
        return tuple(
            linear_cross_entropy(
                features, head.weight, targets, head.bias, chunk=self.config.loss_chunk
            )
            for head, features, targets in zip(heads, read, (codes, words), strict=True)
        )


class QuestionAnswerer(nn.Module):
    """BEiT-3's model of visual question answering: encoder, pooler and answer head."""

    def __init__(self, config: QuestionAnsweringConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        poolings = {"first": first_of_image, "mask_token": mask_of_text}
        self.parts = (poolings[config.pooling],)
        self.pooler = nn.Sequential(
            build_norm("layernorm", config.width, config),
            NormalLinear(config.width, config.width, bias=True, std=NORMAL_STD),
            nn.Tanh(),
        )
        self.head = nn.Sequential(
            NormalLinear(config.width, 2 * config.width, bias=True, std=NORMAL_STD),
            build_norm("layernorm", 2 * config.width, config),
            nn.GELU(),
            NormalLinear(
                2 * config.width, require(config.answers, "answers"), bias=True, std=NORMAL_STD
            ),
        )

    def forward(self, images: Tensor, samples: Samples) -> Tensor:
        read = pool_pairs(self.parts, self.encoder(images, samples), samples)
        return self.head(self.pooler(read))


class VisualReasoner(nn.Module):
    """BEiT-3's model of visual reasoning about two images.

    The encoder reads the statement with the left image, and separately with the right image. The
    head reads the pooled features from both passes.
    """

    def __init__(self, config: VisualReasonerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        poolings: dict[str, tuple[Pooling, ...]] = {
            "first": (first_of_image, first_of_text), "mask_token": (mask_of_text,)
        }  # fmt: skip
        self.parts = poolings[config.pooling]
        std, inner = NORMAL_STD * config.head_scale, 2 * config.width
        inputs = len(self.parts) * config.width * IMAGES
        self.head = nn.Sequential(
            nn.LayerNorm(inputs, eps=config.norm_eps),
            NormalLinear(inputs, inner, bias=True, std=std),
            nn.LayerNorm(inner, eps=config.norm_eps),
            nn.GELU(),
            NormalLinear(inner, len(ANSWERS), bias=True, std=std),
        )

    def forward(self, images: Tensor, samples: Samples) -> Tensor:
        """Return the logits of false and true, (statements, 2).

        In `images`, the left image of a statement comes directly before its right image. `samples`
        contains each statement twice, once for each image.
        """
        read = pool_pairs(self.parts, self.encoder(images, samples), samples)
        return self.head(read.unflatten(0, (-1, IMAGES)).flatten(1))


class SimilarityScale(nn.Module):
    """Learned scale of similarities. The learned parameter is the logarithm of the scale."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.logarithm = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logarithm, -math.log(self.temperature))

    @torch.no_grad()
    def limit(self) -> None:
        """Clamp the parameter to its upper bound.

        Without the clamp, a parameter above the bound would get no gradient.
        """
        self.logarithm.clamp_(max=math.log(LARGEST_SCALE))

    def forward(self) -> Tensor:
        return self.logarithm.float().clamp(max=math.log(LARGEST_SCALE)).exp()


class ImageTextRetriever(nn.Module):
    """BEiT-3's dual encoder, which reads images and texts separately, with a head for each kind."""

    def __init__(self, config: ImageTextRetrieverConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.encoder = VisionLanguageEncoder(config)
        means = (partial(mean_of_image, config.image_tokens), mean_of_text)
        poolings: dict[str, tuple[Pooling, Pooling]] = {
            "first": (first_of_image, first_of_text), "mean": means
        }  # fmt: skip
        self.parts = poolings[config.pooling]
        self.vision_head = NormalLinear(width, width, bias=False, std=NORMAL_STD)
        self.language_head = NormalLinear(width, width, bias=False, std=NORMAL_STD)
        self.scale = SimilarityScale(config.temperature)

    def forward(self, images: Tensor, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings (images, width) and (texts, width), and the scale of similarities.

        Embeddings are float32 unit vectors. `samples` must contain no pairs.
        """
        vision, language = self.encoder(images, samples)
        of_images, of_texts = (part(vision, language, samples) for part in self.parts)
        first, second = self.vision_head(of_images), self.language_head(of_texts)
        return F.normalize(first.float(), dim=-1), F.normalize(second.float(), dim=-1), self.scale()


def contrastive_losses(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Return the contrastive loss of each pair in nats, (pairs,).

    The loss is the mean of two cross-entropies: one over the texts, and one over the images.
    `images` and `texts` are unit vectors, (pairs, width). Text i belongs only to image i.
    """
    with without_autocast(images):
        logits = scale * images @ texts.T
    own = torch.arange(len(images), device=images.device)
    rows = F.cross_entropy(logits, own, reduction="none")
    return (rows + F.cross_entropy(logits.T, own, reduction="none")) / 2


class ImageCaptioner(nn.Module):
    """Captioning model: an encoder, and a linear head that predicts masked words."""

    def __init__(self, config: ImageCaptionerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        size = require(config.vocab_size, "vocab_size")
        self.word_head = NormalLinear(config.width, size, bias=True, std=NORMAL_STD)

    def forward(
        self, images: Tensor, samples: Samples, words: Tensor, targets: Tensor | None = None
    ) -> Tensor | CrossEntropyLoss:
        """Return logits (words, vocab_size), or the summed loss if `targets` (words,) are given.

        `samples` must have a left-to-right attention mask (the function `left_to_right` sets it).
        `words` are the indices of masked words among the language tokens.
        """
        vision, language = self.encoder(images, samples)
        # The head does not read the image's features. The product with 0 gives the image's experts
        # gradients of zeros. Without gradients, ranks would wait for them.
        features = language[words] + 0 * vision.sum()
        if targets is None:
            return self.word_head(features)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return linear_cross_entropy(
            features, self.word_head.weight, targets, self.word_head.bias,
            smoothing=smoothing, chunk=self.config.loss_chunk,
        )  # fmt: skip
