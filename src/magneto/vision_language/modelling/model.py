"""The model of masked data modelling: one encoder, a head for patches and a head for words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from magneto.functional.cross_entropy import CrossEntropyLoss, linear_cross_entropy
from magneto.nn.embedding import MaskToken
from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.vision_language.config import MaskedDataModelConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.samples import Samples


@dataclass(frozen=True)
class MaskedSamples:
    """What is hidden in a batch.

    Attributes:
        samples: Images alone, pairs and texts alone; hidden words are masked in it.
        hidden: Boolean, (images, patches): True where a patch is hidden.
        patches: (hidden patches,) number of each: image * patches of an image + patch. Those of
            images alone come first.
        words: (hidden words,) number of each among the language tokens. Those of pairs come first.
        alone_patches: How many of the hidden patches are of images alone.
        paired_words: How many of the hidden words are of pairs.
    """

    samples: Samples
    hidden: Tensor
    patches: Tensor
    words: Tensor
    alone_patches: int
    paired_words: int


@dataclass(frozen=True)
class MaskedDataLoss:
    """Cross-entropies of a batch: of hidden patches and of hidden words."""

    patches: CrossEntropyLoss
    words: CrossEntropyLoss


class MaskedDataModel(nn.Module):
    """`VisionLanguageEncoder`, and two linear heads that see the hidden places alone.

    Raises:
        ValueError: If `vocab_size` or `codes` is None.
    """

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

    def features(self, images: Tensor, masked: MaskedSamples) -> tuple[Tensor, Tensor]:
        """Return what the heads read: (hidden patches, width) and (hidden words, width)."""
        given = masked.samples
        vision, language = self.encoder(
            images, given.token_ids, given.token_positions, given.packing, masked.hidden
        )
        # Each image has its class token before its patches.
        places = masked.patches + masked.patches // self.config.patches + 1
        return vision.index_select(0, places), language.index_select(0, masked.words)

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
            Logits (hidden patches, codes) and (hidden words, vocab_size); or a `MaskedDataLoss`.
        """
        patches, language = self.features(images, masked)
        if codes is None or words is None:
            return self.patch_head(patches), self.word_head(language)
        losses = [
            linear_cross_entropy(
                features, head.weight, targets, head.bias, chunk=self.config.loss_chunk
            )
            for head, features, targets in (
                (self.patch_head, patches, codes),
                (self.word_head, language, words),
            )
        ]
        return MaskedDataLoss(*losses)
