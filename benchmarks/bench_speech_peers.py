"""Speech models for `make bench`, assembled from parts, since no library has this transducer.

Encoder, LSTM and joiner are as large as Magneto's. All logits of the joiner exist at once, as in
ESPnet and NeMo, and the loss is plain torch. It equals the loss of warprnnt-numba, which is made
for a GPU and iterates over the lattice in Python on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench_cases import MEL_BINS, Case, draw
from benchmarks.bench_product import SPEECH
from benchmarks.bench_text_peers import Peer
from benchmarks.nano_gpt import plain_blocks


class PlainEncoder(nn.Module):
    """Encoder of plain torch: two pairs of convolutions with pooling, and plain blocks."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        first, second = SPEECH["front_channels"]
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.Conv2d(first, first, 3, padding=1),
            nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 3, padding=1), nn.ReLU(),
            nn.Conv2d(second, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.proj = nn.Linear(second * MEL_BINS // 4, case.width)
        self.position = nn.Embedding(case.length // 4, case.width)
        self.blocks = plain_blocks(case)
        self.norm = nn.LayerNorm(case.width)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, frames, bins) to (batch, frames // 4, width)."""
        x = self.convolutions(features[:, None]).transpose(1, 2).flatten(2)
        return self.norm(self.blocks(self.proj(x) + self.position.weight))


class Speech2Text(nn.Module):
    """The encoder of transformers' Speech2Text, with its own convolutions."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        from transformers import Speech2TextConfig
        from transformers.models.speech_to_text.modeling_speech_to_text import Speech2TextEncoder

        config = Speech2TextConfig(
            d_model=case.width, encoder_layers=case.layers, encoder_attention_heads=case.heads,
            encoder_ffn_dim=4 * case.width, activation_function="gelu", dropout=0.0,
            input_feat_per_channel=MEL_BINS, conv_channels=256,
        )  # fmt: skip
        self.encoder = Speech2TextEncoder(config)

    def forward(self, features: Tensor) -> Tensor:
        """(batch, frames, bins) to (batch, frames // 4, width)."""
        return self.encoder(features).last_hidden_state


class Joined(nn.Module):
    """Transducer of an encoder, an LSTM over the labels, and a joiner with all its logits."""

    def __init__(self, encoder: nn.Module, case: Case) -> None:
        super().__init__()
        inner, joint = SPEECH["predictor_width"], SPEECH["joint_width"]
        self.encoder = encoder
        self.embedding = nn.Embedding(case.vocab_size, inner)
        self.lstm = nn.LSTM(inner, inner, SPEECH["predictor_layers"], batch_first=True)
        self.encoder_proj = nn.Linear(case.width, joint)
        self.predictor_proj = nn.Linear(inner, joint, bias=False)
        self.output = nn.Linear(joint, case.vocab_size)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Features and targets to logits (batch, frames, labels + 1, vocabulary)."""
        encoded = self.encoder_proj(self.encoder(features))
        predicted = self.predictor_proj(self.lstm(self.embedding(F.pad(targets, (1, 0))))[0])
        return self.output(torch.tanh(encoded[:, :, None] + predicted[:, None]))


def plain_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean transducer loss by a recursion over the diagonals of the lattice, blank 0.

    The logits are (batch, frames, labels + 1, vocabulary), the targets (batch, labels).
    """
    scores = logits.log_softmax(-1)
    batch, frames, columns, _ = scores.shape
    blank = scores[..., 0]
    index = targets[:, None, :, None].expand(-1, frames, -1, 1)
    label = scores[:, :, :-1].gather(-1, index)[..., 0]
    # States with a label or a frame outside the lattice are impossible.
    nothing = scores.new_full((batch, 1), -torch.inf)
    before = scores.new_zeros(batch, 1)  # diagonal 0: one state, frame 0 before any label
    low = 0
    for diagonal in range(1, frames + columns - 1):
        first, last = max(0, diagonal - frames + 1), min(diagonal, columns - 1)
        labels = torch.arange(first, last + 1)
        times = diagonal - labels
        # By a blank from (time - 1, label); by a label from (time, label - 1).
        padded = torch.cat((nothing, before, nothing), 1)
        waited, spoken = padded[:, labels - low + 1], padded[:, labels - low]
        blanks = blank[:, (times - 1).clamp(min=0), labels]
        spoke = label[:, times.clamp(max=frames - 1), (labels - 1).clamp(min=0)]
        before, low = torch.logaddexp(waited + blanks, spoken + spoke), first
    return -(before[:, 0] + blank[:, -1, -1]).mean()


def transducer(encoder: nn.Module, case: Case) -> Peer:
    """Return an encoder's transducer with the plain loss."""
    model, drawn = Joined(encoder, case), draw(case)
    return model, lambda: plain_loss(model(drawn["features"], drawn["targets"]), drawn["targets"])


def plain(case: Case) -> Peer:
    return transducer(PlainEncoder(case), case)


def speech_to_text(case: Case) -> Peer:
    """Return transformers' encoder with the plain loss."""
    return transducer(Speech2Text(case), case)
