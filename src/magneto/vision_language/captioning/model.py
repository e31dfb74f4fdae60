"""A vision-language encoder that fills in the words of captions."""

from __future__ import annotations

from torch import Tensor, nn

from magneto.functional.cross_entropy import CrossEntropyLoss, linear_cross_entropy
from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.vision_language.config import ImageCaptionerConfig
from magneto.vision_language.model import VisionLanguageEncoder
from magneto.vision_language.samples import Samples


class ImageCaptioner(nn.Module):
    """An encoder, and a linear head over the vocabulary that reads the places to be filled in.

    Raises:
        ValueError: If `vocab_size` is None.
    """

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
        """Return logits, or with targets the loss, whose logits never exist all at once.

        Args:
            images: (pairs, channels, height, width).
            samples: As many pairs, packed by `left_to_right`.
            words: (words,) numbers of the places to be filled in, among the language tokens.
            targets: (words,) what belongs there.

        Returns:
            Logits (words, vocab_size), or the summed cross-entropy.
        """
        vision, language = self.encoder(
            images, samples.token_ids, samples.token_positions, samples.packing
        )
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
