"""The encoder of images, texts and pairs, and the model of each task: a head on what it reads.

Patches and words are embedded, and go through one Transformer. Which of the features a head reads
is said by a model's `pooling`, see `magneto.vision_language.config`.
"""

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
from magneto.nn.init import NORMAL_STD, FastIdentity, NormalLinear, build_norm
from magneto.nn.multiway import MultiwayEncoder, Streams
from magneto.nn.position import resize_table
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

# Tables of positions in a `VisionLanguageEncoder`, by the ends of their names.
IMAGE_POSITIONS = "vision_embedding.positions.weight"
TEXT_POSITIONS = "text_embedding.positions.weight"
# Names of the answers to a statement, in the order of their numbers.
ANSWERS = ("False", "True")
# Similarities are multiplied by no more (CLIP, arXiv 2103.00020).
MOST_SCALE = 100.0

Pooling = Callable[[Tensor, Tensor, Samples], Tensor]
"""From features of both modalities to one vector of each image, or of each text."""


class VisionEmbedding(nn.Module):
    """From images to vision tokens: patches, a class token before them, learned positions."""

    def __init__(self, config: VisionLanguageConfig, mask_token: nn.Module | None) -> None:
        super().__init__()
        width = config.width
        _, patch_size, channels = config.input_sizes
        self.patches = PatchEmbedding(channels, patch_size, width)
        self.mask_token = mask_token
        self.class_token = ClassToken(width)
        self.positions = VectorTable(config.image_tokens, width, std=width**-0.5)

    def forward(self, images: Tensor, hidden: Tensor | None) -> Tensor:
        """(images, channels, height, width) to (images * image_tokens, width)."""
        patches = self.patches(images)
        if self.mask_token is not None:
            patches = self.mask_token(patches, hidden)
        patches = self.class_token(patches)
        places = torch.arange(patches.shape[1], device=patches.device)
        return (patches + self.positions(places)).flatten(0, 1)


class PackedTextEmbedding(nn.Module):
    """From packed tokens to vectors, with learned positions."""

    def __init__(self, config: VisionLanguageConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not known: prepare the task, which asks the tokenizer")
        width = config.width
        self.words = TextEmbedding(config.vocab_size, width, config.embedding_scale)
        self.positions = VectorTable(config.max_length, width, std=width**-0.5)

    def forward(self, samples: Samples) -> Tensor:
        """Return the vectors of the samples' language tokens, (language tokens, width)."""
        return self.words(samples.token_ids) + self.positions(samples.token_positions)


class VisionLanguageEncoder(nn.Module):
    """Embeddings of images and texts, and the Multiway Transformer over both.

    A model that begins with a pre-trained encoder has it as its attribute `encoder`.

    Args:
        config: With `vocab_size`.
        mask_token: What stands in place of hidden patches, in pre-training `MaskToken`.
    """

    def __init__(self, config: VisionLanguageConfig, mask_token: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.vision_embedding = VisionEmbedding(config, mask_token)
        self.text_embedding = PackedTextEmbedding(config)
        self.transformer = MultiwayEncoder(config)
        if config.final_norm == "none":
            names = self.transformer.final_norm
            self.transformer.final_norm = nn.ModuleDict({name: FastIdentity() for name in names})

    def forward(self, images: Tensor, samples: Samples, hidden: Tensor | None = None) -> Streams:
        """Encode the samples of a batch: images alone, pairs, texts alone, in this order.

        Args:
            images: (images, channels, height, width): of images alone, then of pairs; where there
                are none, (0, channels, height, width).
            samples: Their texts, and how they stand beside them; see `join_samples`.
            hidden: Boolean, (images, patches): True where the model does not see the patch; None
                hides nothing.

        Returns:
            Features of both modalities: (vision tokens, width), where each image has its class
            token and then its patches, and (language tokens, width).
        """
        vision, language = self.embed(images, samples, hidden)
        return self.transformer(vision, language, samples.packing)

    def embed(self, images: Tensor, samples: Samples, hidden: Tensor | None = None) -> Streams:
        """Return what the Transformer reads: both modalities, (tokens, width) each."""
        return self.vision_embedding(images, hidden), self.text_embedding(samples)

    @torch.no_grad()
    def attention_weights(self, images: Tensor, samples: Samples, layer: int = -1) -> Tensor:
        """Return what share each token gives to each other one in a layer, 0 the lowest.

        It is (samples, heads, length, length), queries by keys; of a pair the first `image_tokens`
        are the image's, its class token first, and then come its words.
        """
        layer = layer % len(self.transformer.layers)
        vision, language = self.embed(images, samples)
        return self.transformer.attention_weights(vision, language, samples.packing, layer)


def interpolate_positions(
    state: Mapping[str, Tensor], old: VisionLanguageConfig, new: VisionLanguageConfig
) -> dict[str, Tensor]:
    """Return an encoder's tensors for images of another size, or shorter texts.

    Positions of patches are interpolated as in the released BEiT-3: bicubic, the class token's
    stays. Of the positions of words the first `max_length` are taken.

    Raises:
        ValueError: If the new model reads longer texts than the old one.
    """
    if new.max_length > old.max_length:
        raise ValueError(f"it has positions for texts of {old.max_length} tokens: give "
                         f"--model.max_length {old.max_length} or less")  # fmt: skip
    made = dict(state)
    for name, tensor in state.items():
        if name.endswith(IMAGE_POSITIONS):
            made[name] = resize_table(tensor, old.image_grid, new.image_grid)
        elif name.endswith(TEXT_POSITIONS):
            made[name] = tensor[: new.max_length]
    return made


def first_of_image(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    """Return the features of each image's class token, (images, width)."""
    return vision.index_select(0, samples.image_starts)


def mean_of_image(image_tokens: int, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    """Return the mean of each image's patches, its class token left out, (images, width)."""
    return vision.unflatten(0, (-1, image_tokens))[:, 1:].mean(dim=1)


def first_of_text(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    """Return the features of each text's `<s>`, (texts, width)."""
    return language.index_select(0, samples.text_starts)


def mean_of_text(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    """Return the mean of each text's tokens, of `<s>` and `</s>` too, (texts, width)."""
    starts, ends = samples.text_starts[:, None], samples.text_ends[:, None]
    places = torch.arange(len(language), device=language.device)
    own = (places >= starts) & (places <= ends)
    # A product, since on a GPU sums by index are added in any order.
    return own.to(language.dtype) @ language / (ends - starts + 1).to(language.dtype)


def mask_of_text(vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
    """Return the features of the `<mask>` that stands before each text's `</s>`, (texts, width)."""
    return language.index_select(0, samples.text_ends - 1)


def read_pairs(parts: Sequence[Pooling], streams: Streams, samples: Samples) -> Tensor:
    """Return what is read of each pair of image and text, (pairs, parts * width)."""
    vision, language = streams
    read = torch.cat([part(vision, language, samples) for part in parts], dim=-1)
    # A modality may not be read. The empty sum gives what the top layer makes of it gradients of
    # zeros, not none, for which ranks would wait.
    return read + vision[:0].sum() + language[:0].sum()


class MaskedDataModel(nn.Module):
    """`VisionLanguageEncoder`, and two linear heads that see the hidden places alone."""

    def __init__(self, config: MaskedDataModelConfig) -> None:
        super().__init__()
        if config.codes is None or config.vocab_size is None:
            raise ValueError("codes and vocab_size are not known: prepare the task, which asks "
                             "both tokenizers")  # fmt: skip
        self.config = config
        width = config.width
        self.encoder = VisionLanguageEncoder(config, MaskToken(width))
        self.patch_head = NormalLinear(width, config.codes, bias=True, std=NORMAL_STD)
        self.word_head = NormalLinear(width, config.vocab_size, bias=True, std=NORMAL_STD)

    def forward(
        self,
        images: Tensor,
        masked: MaskedSamples,
        codes: Tensor | None = None,
        words: Tensor | None = None,
    ) -> Any:
        """Return logits, or with both targets the losses, whose logits never exist all at once.

        Args:
            images: (images, channels, height, width).
            masked: What is hidden.
            codes: Of the hidden patches, (hidden patches,); -100 for none.
            words: That are hidden, (hidden words,); -100 for none.

        Returns:
            Logits (hidden patches, codes) and (hidden words, vocab_size); or the summed
            cross-entropies of both.
        """
        vision, language = self.encoder(images, masked.samples, masked.hidden)
        # Each image has its class token before its patches.
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


class AnswerHead(nn.Sequential):
    """A hidden layer of twice the width, and a logit for each answer."""

    def __init__(self, config: QuestionAnsweringConfig, answers: int) -> None:
        super().__init__(
            NormalLinear(config.width, 2 * config.width, bias=True, std=NORMAL_STD),
            build_norm("layernorm", 2 * config.width, config),
            nn.GELU(),
            NormalLinear(2 * config.width, answers, bias=True, std=NORMAL_STD),
        )


class QuestionAnswerer(nn.Module):
    """BEiT-3's model of VQA: features that have read image and question answer.

    In BEiT-3 they are those of the image's class token; see `QuestionAnsweringConfig.pooling`.
    """

    def __init__(self, config: QuestionAnsweringConfig) -> None:
        super().__init__()
        if config.answers is None:
            raise ValueError("answers is not known: prepare the task, which reads the data")
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        poolings = {"first": first_of_image, "mask_token": mask_of_text}
        self.parts = (poolings[config.pooling],)
        self.pooler = nn.Sequential(
            build_norm("layernorm", config.width, config),
            NormalLinear(config.width, config.width, bias=True, std=NORMAL_STD),
            nn.Tanh(),
        )
        self.head = AnswerHead(config, config.answers)

    def forward(self, images: Tensor, samples: Samples) -> Tensor:
        """Return logits (questions, answers) of questions, each beside its image."""
        read = read_pairs(self.parts, self.encoder(images, samples), samples)
        return self.head(self.pooler(read))


class VisualReasoner(nn.Module):
    """The statement is read with each image by itself; the head reads all of them (BEiT-3).

    Of each pass it has the features of the image's class token and of the text's `<s>`, or others:
    see `VisualReasonerConfig.pooling`. Then 4 x width, a norm, 2 x width, a norm, GELU,
    two logits.
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
        """Return logits (statements, 2) of false and true.

        The images of a statement come one after the other, each with the statement in `samples`.
        """
        read = read_pairs(self.parts, self.encoder(images, samples), samples)
        return self.head(read.unflatten(0, (-1, IMAGES)).flatten(1))


class SimilarityScale(nn.Module):
    """What similarities are multiplied by: the exponential of a learnt number."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.logarithm = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the first value."""
        nn.init.constant_(self.logarithm, -math.log(self.temperature))

    def forward(self) -> Tensor:
        """Return the scale, a scalar: 1 / temperature at first."""
        return self.logarithm.float().clamp(max=math.log(MOST_SCALE)).exp()


class ImageTextRetriever(nn.Module):
    """An encoder over images alone and texts alone, and a linear head for each (BEiT-3).

    An image is the feature of its class token, a text that of its `<s>`; or means, see
    `ImageTextRetrieverConfig.pooling`.
    """

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
        """Embed as many images and texts as there are, each alone in `samples`.

        Returned are vectors of length 1 of the images, (images, width), and of the texts, (texts,
        width), in float32; and what similarities are multiplied by, a scalar.
        """
        vision, language = self.encoder(images, samples)
        of_images, of_texts = (part(vision, language, samples) for part in self.parts)
        first, second = self.vision_head(of_images), self.language_head(of_texts)
        return F.normalize(first.float(), dim=-1), F.normalize(second.float(), dim=-1), self.scale()


def contrastive_losses(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Return the loss of each pair, (pairs,): half of each direction's cross-entropy, in nats.

    Both are (pairs, width), of length 1 each: text i belongs to image i, and to no other.
    """
    with without_autocast(images):
        logits = scale * images @ texts.T
    own = torch.arange(len(images), device=images.device)
    rows = F.cross_entropy(logits, own, reduction="none")
    return (rows + F.cross_entropy(logits.T, own, reduction="none")) / 2


class ImageCaptioner(nn.Module):
    """An encoder, and a linear head over the vocabulary that reads the places to be filled in."""

    def __init__(self, config: ImageCaptionerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = VisionLanguageEncoder(config)
        self.word_head = NormalLinear(
            config.width, config.vocab_size or 1, bias=True, std=NORMAL_STD
        )

    def forward(
        self, images: Tensor, samples: Samples, words: Tensor, targets: Tensor | None = None
    ) -> Tensor | CrossEntropyLoss:
        """Return logits (words, vocab_size), or with targets the summed loss, made in chunks.

        Args:
            images: (pairs, channels, height, width).
            samples: As many pairs, packed by `left_to_right`.
            words: (words,) numbers of the places to be filled in, among the language tokens.
            targets: (words,) what belongs there.
        """
        vision, language = self.encoder(images, samples)
        # The image's features are read by nobody; with this their experts have gradients, of zeros,
        # for which ranks wait.
        features = language[words] + 0 * vision.sum()
        if targets is None:
            return self.word_head(features)
        smoothing = self.config.label_smoothing if self.training else 0.0
        return linear_cross_entropy(
            features, self.word_head.weight, targets, self.word_head.bias,
            smoothing=smoothing, chunk=self.config.loss_chunk,
        )  # fmt: skip
