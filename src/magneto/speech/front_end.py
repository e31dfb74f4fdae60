"""From filterbanks to what the encoder reads: convolutions, with a quarter of the frames."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.speech.transducer_config import SUBSAMPLING, TransducerConfig


class Convolution(nn.Conv2d):
    """A 3 x 3 convolution before a ReLU, drawn by He's rule; its bias is zero at first.

    The rule (He et al. 2015, arXiv 1502.01852): a normal distribution of variance 2 / fan-in, so
    that a signal keeps its size through convolution and ReLU. Drawn as torch draws, the signal
    shrinks at each of them and the biases do not, and the encoder reads almost the same at every
    time.
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__(inputs, channels, 3, padding=1)

    def reset_parameters(self) -> None:
        """Draw the weights, zero the bias."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


class ConvolutionPair(nn.Module):
    """Two 3 x 3 convolutions with ReLU, then the maximum of 2 x 2; padding stays zero throughout.

    So an utterance gives the same whether it stands alone or among longer ones.
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.first = Convolution(inputs, channels)
        self.second = Convolution(channels, channels)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, inputs, frames, bins) to (batch, channels, frames // 2, bins // 2)."""
        mask = frame_mask(lengths, x.shape[2])[:, None, :, None]
        x = F.relu(self.first(x)) * mask
        x = F.relu(self.second(x)) * mask
        x, lengths = F.max_pool2d(x, 2), lengths // 2
        return x * frame_mask(lengths, x.shape[2])[:, None, :, None], lengths


class FrontEnd(nn.Module):
    """The VGG front-end of ESPnet's transducers: two `ConvolutionPair`s and a linear layer."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        first, second = config.front_channels
        self.pairs = nn.ModuleList([ConvolutionPair(1, first), ConvolutionPair(first, second)])
        self.proj = nn.Linear(second * (config.mel_bins // SUBSAMPLING), config.width)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample.

        Args:
            features: (batch, frames, mel bins).
            lengths: (batch,) frames.

        Returns:
            (batch, frames // 4, width), and the lengths of these.
        """
        x = (features * frame_mask(lengths, features.shape[1])[..., None])[:, None]
        for pair in self.pairs:
            x, lengths = pair(x, lengths)
        return self.proj(x.transpose(1, 2).flatten(2)), lengths


def frame_mask(lengths: Tensor, frames: int) -> Tensor:
    """Return (batch, frames), True for an utterance's own."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]
