"""The encoder of images, texts and pairs, and what a head reads of its features.

Patches and words are embedded, and go through one Transformer. A pooling takes the features of a
batch, of both modalities, with its samples, and returns one vector of each; which is used is said
by a model's `pooling`, see `magneto.vision_language.config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from magneto.nn.init import ClassToken, Nothing, PatchEmbedding, Table, TextEmbedding
from magneto.nn.multiway import MultiwayEncoder, Packing, Streams
from magneto.nn.position import resize_table
from magneto.vision_language.config import VisionLanguageConfig
from magneto.vision_language.samples import Samples

# Tables of positions in a `VisionLanguageEncoder`, by the ends of their names.
IMAGE_POSITIONS = "vision_embedding.positions.weight"
TEXT_POSITIONS = "text_embedding.positions.weight"


class NoMaskToken(nn.Module):
    """What stands where no patch is ever hidden: in all models but that of pre-training."""

    def forward(self, patches: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the patches, (images, patches, width)."""
        return patches


class VisionEmbedding(nn.Module):
    """From images to vision tokens: patches, a class token before them, learned positions."""

    def __init__(self, config: VisionLanguageConfig, mask_token: nn.Module) -> None:
        super().__init__()
        width = config.width
        self.patches = PatchEmbedding(config.channels, config.patch_size, width)
        self.mask_token = mask_token
        self.class_token = ClassToken(width)
        self.positions = Table(config.image_tokens, width, std=width**-0.5)

    def forward(self, images: Tensor, hidden: Tensor | None) -> Tensor:
        """(images, channels, height, width) to (images * image_tokens, width)."""
        patches = self.class_token(self.mask_token(self.patches(images), hidden))
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
        self.positions = Table(config.max_length, width, std=width**-0.5)

    def forward(self, token_ids: Tensor, token_positions: Tensor) -> Tensor:
        """(language tokens,) both to (language tokens, width)."""
        return self.words(token_ids) + self.positions(token_positions)


class VisionLanguageEncoder(nn.Module):
    """Embeddings of images and texts, and the Multiway Transformer over both.

    A model that begins with a pre-trained encoder has it as its attribute `encoder`; see
    `magneto.vision_language.pretrained`.

    Args:
        config: With `vocab_size`.
        mask_token: What stands in place of hidden patches, in pre-training `MaskToken`.

    Raises:
        ValueError: If `vocab_size` is None.
    """

    def __init__(self, config: VisionLanguageConfig, mask_token: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.vision_embedding = VisionEmbedding(config, mask_token or NoMaskToken())
        self.text_embedding = PackedTextEmbedding(config)
        self.transformer = MultiwayEncoder(config)
        if config.final_norm == "none":
            names = self.transformer.final_norm
            self.transformer.final_norm = nn.ModuleDict({name: Nothing() for name in names})

    def forward(
        self,
        images: Tensor,
        token_ids: Tensor,
        token_positions: Tensor,
        packing: Packing,
        hidden: Tensor | None = None,
    ) -> Streams:
        """Encode the samples of a batch: images alone, pairs, texts alone, in this order.

        `magneto.vision_language.samples.join_samples` makes everything but the images.

        Args:
            images: (images, channels, height, width): of images alone, then of pairs; where there
                are none, (0, channels, height, width).
            token_ids: (language tokens,): texts `<s>` ... `</s>` of pairs, then texts alone,
                without padding.
            token_positions: (language tokens,): 0 for each text's `<s>`, and so on.
            packing: Of these samples.
            hidden: Boolean, (images, patches): True where the model does not see the patch; None
                hides nothing.

        Returns:
            Features of both modalities: (vision tokens, width), where each image has its class
            token and then its patches, and (language tokens, width).
        """
        vision, language = self.embed(images, token_ids, token_positions, hidden)
        return self.transformer(vision, language, packing)

    def embed(
        self,
        images: Tensor,
        token_ids: Tensor,
        token_positions: Tensor,
        hidden: Tensor | None = None,
    ) -> Streams:
        """Return what the Transformer reads: both modalities, (tokens, width) each."""
        vision = self.vision_embedding(images, hidden)
        return vision, self.text_embedding(token_ids, token_positions)

    def attention_weights(
        self,
        images: Tensor,
        token_ids: Tensor,
        token_positions: Tensor,
        packing: Packing,
        layer: int = -1,
    ) -> Tensor:
        """Return what share each token gives to each other one in a layer, for pictures.

        Args:
            images: As in `forward`.
            token_ids: As in `forward`.
            token_positions: As in `forward`.
            packing: As in `forward`.
            layer: Its number from 0; -1 is the topmost.

        Returns:
            (samples, heads, length, length), queries by keys; of a pair the first `image_tokens`
            are the image's, its class token first, and then come its words.
        """
        layer = layer % len(self.transformer.layers)
        with torch.no_grad():
            vision, language = self.embed(images, token_ids, token_positions)
        return self.transformer.attention_weights(vision, language, packing, layer)


def interpolate_positions(
    state: Mapping[str, Tensor], old: VisionLanguageConfig, new: VisionLanguageConfig
) -> dict[str, Tensor]:
    """Return an encoder's tensors for images of another size, or shorter texts.

    Positions of patches are interpolated as in the released BEiT-3: bicubic, the class token's
    stays. Of the positions of words the first `max_length` are taken.

    Args:
        state: Tensors by name, of a model with one `VisionLanguageEncoder`.
        old: Configuration of the model they come from.
        new: Of the model they are for.

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


class FirstOfImage(nn.Module):
    """The features of each image's class token."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (images, width)."""
        return vision.index_select(0, samples.image_starts)


class MeanOfImage(nn.Module):
    """The mean of each image's patches, its class token left out.

    Args:
        image_tokens: Vision tokens of an image.
    """

    def __init__(self, image_tokens: int) -> None:
        super().__init__()
        self.image_tokens = image_tokens

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (images, width)."""
        return vision.unflatten(0, (-1, self.image_tokens))[:, 1:].mean(dim=1)


class FirstOfText(nn.Module):
    """The features of each text's `<s>`."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (texts, width)."""
        return language.index_select(0, samples.text_starts)


class MeanOfText(nn.Module):
    """The mean of each text's tokens, of `<s>` and `</s>` too."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (texts, width)."""
        starts, ends = samples.text_starts[:, None], samples.text_ends[:, None]
        places = torch.arange(len(language), device=language.device)
        own = (places >= starts) & (places <= ends)
        # A product, since on a GPU sums by index are added in any order.
        return own.to(language.dtype) @ language / (ends - starts + 1).to(language.dtype)


class MaskOfText(nn.Module):
    """The features of the `<mask>` that stands before each text's `</s>`."""

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (texts, width)."""
        return language.index_select(0, samples.text_ends - 1)


class PairPooling(nn.Module):
    """What is read of each pair of image and text: the vectors of some parts, in a row.

    Args:
        parts: At least one of the modules above.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, vision: Tensor, language: Tensor, samples: Samples) -> Tensor:
        """(vision tokens, width) and (language tokens, width) to (pairs, parts * width)."""
        read = torch.cat([part(vision, language, samples) for part in self.parts], dim=-1)
        # A modality may not be read. The empty sum gives what the top layer makes of it gradients
        # of zeros, not none, for which ranks would wait.
        return read + vision[:0].sum() + language[:0].sum()
