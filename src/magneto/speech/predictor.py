"""A transducer's predictor: from the labels so far to what the joiner reads. Blank is its start.

A state is a tuple of tensors whose first axis is the batch, so that a search can pick rows of it.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.functional.precision import without_autocast
from magneto.nn.embedding import Table
from magneto.speech.transducer_config import TransducerConfig
from magneto.speech.vocabulary import BLANK

State = tuple[Tensor, ...]


class Predictor(Protocol):
    """What training and decoding ask of a predictor."""

    def __call__(self, labels: Tensor) -> Tensor:
        """(batch, labels) to (batch, labels + 1, width): before any label, and after each."""
        ...

    def begin(self, batch: int, device: torch.device) -> State:
        """Return the state before the start symbol."""
        ...

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one label of each row, (batch,); return (batch, width) and the state after it."""
        ...


class LSTMPredictor(nn.Module):
    """An embedding and an LSTM, which stays in the type of its weights under autocast.

    It is a small part of the model; and on processors without AVX-512 torch has no LSTM of bfloat16
    under autocast, but an error of oneDNN.
    """

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        width, layers = config.predictor_width, config.predictor_layers
        self.embedding = Table(config.vocab_size, width, std=1.0)
        self.dropout = nn.Dropout(config.predictor_dropout)
        between = config.predictor_dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=between)

    def forward(self, labels: Tensor) -> Tensor:
        """(batch, labels) to (batch, labels + 1, width)."""
        x = self.dropout(self.embedding(F.pad(labels, (1, 0), value=BLANK)))
        with without_autocast(x):
            return self.lstm(x)[0]

    def begin(self, batch: int, device: torch.device) -> State:
        """Return zeros."""
        shape = (batch, self.lstm.num_layers, self.lstm.hidden_size)
        zeros = torch.zeros(shape, dtype=self.embedding.weight.dtype, device=device)
        return zeros, zeros.clone()

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one label of each row."""
        hidden, cell = (part.transpose(0, 1).contiguous() for part in state)
        x = self.embedding(labels)[:, None].to(hidden.dtype)
        with without_autocast(x):
            output, (hidden, cell) = self.lstm(x, (hidden, cell))
        return output[:, 0], (hidden.transpose(0, 1), cell.transpose(0, 1))


class StatelessPredictor(nn.Module):
    """An embedding, and a convolution of each feature over the last labels, with ReLU."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        width, self.context = config.predictor_width, config.predictor_context
        self.embedding = Table(config.vocab_size, width, std=1.0)
        self.dropout = nn.Dropout(config.predictor_dropout)
        self.conv = nn.Conv1d(width, width, self.context, groups=width)

    def forward(self, labels: Tensor) -> Tensor:
        """(batch, labels) to (batch, labels + 1, width)."""
        return self._read(F.pad(labels, (self.context, 0), value=BLANK))

    def begin(self, batch: int, device: torch.device) -> State:
        """Return the last labels before the start: blanks."""
        return (torch.full((batch, self.context), BLANK, device=device),)

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one label of each row."""
        known = torch.cat((state[0][:, 1:], labels[:, None]), 1)
        return self._read(known)[:, 0], (known,)

    def _read(self, labels: Tensor) -> Tensor:
        x = self.dropout(self.embedding(labels)).transpose(1, 2)
        return F.relu(self.conv(x)).transpose(1, 2)


def build_predictor(config: TransducerConfig) -> LSTMPredictor | StatelessPredictor:
    """Build the configured kind."""
    return {"lstm": LSTMPredictor, "stateless": StatelessPredictor}[config.predictor](config)
