"""A small transducer, and searches that are slow and plain, for tests."""

import math
from itertools import product

import torch

from magneto.speech.config import TransducerConfig
from magneto.speech.decoding import Hypothesis
from magneto.speech.model import Transducer

SIZES = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "mel_bins": 8, "positions": "rotary",
    "front_channels": (2, 3), "predictor_width": 12, "joint_width": 10, "vocab_size": 5,
}  # fmt: skip


def small_model(seed: int = 0, **given) -> Transducer:
    """Return a model in evaluation mode whose answers are no longer nearly even."""
    torch.manual_seed(seed)
    model = Transducer(TransducerConfig(**{**SIZES, **given})).eval()
    with torch.no_grad():
        model.joiner.output.weight.mul_(6)
        model.joiner.encoder_proj.weight.mul_(6)
        model.joiner.predictor_proj.weight.mul_(6)
        model.joiner.output.bias[0] += 2  # some frames hold no label
    return model


def features(
    lengths: list[int], seed: int = 0, width: int = 16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features as an encoder might give them, with noise where there is padding."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(len(lengths), max(lengths), width, generator=random), torch.tensor(lengths)


@torch.no_grad()
def plain_greedy(model: Transducer, encoded: torch.Tensor, most: int) -> Hypothesis:
    """Decode the (frames, width) of one utterance, frame by frame."""
    labels, frames, score = [], [], 0.0
    for number, frame in enumerate(encoded):
        for _ in range(most):
            chances = after(model, frame, labels)
            symbol = int(chances.argmax())
            score += float(chances[symbol])
            if symbol == 0:
                break
            labels.append(symbol)
            frames.append(number)
    return Hypothesis(labels, frames, score)


def after(model: Transducer, frame: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """Return log-probabilities of the next symbol."""
    said = model.predictor(torch.tensor([labels], dtype=torch.long))[0, -1]
    return model.joiner.logits(*model.joiner(frame, said)).log_softmax(-1)


@torch.no_grad()
def every_score(model: Transducer, encoded: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every sequence of labels, one at a frame, over all its paths.

    Args:
        model: Of the scores.
        encoded: (frames, width). A frame with a label ends without a blank.
    """
    found = {}
    for count in range(len(encoded) + 1):
        for labels in product(range(1, model.config.vocab_size), repeat=count):
            table = [[after(model, frame, list(labels[:u])) for u in range(count + 1)]
                     for frame in encoded]  # fmt: skip
            alpha = [-math.inf] * (count + 1)
            alpha[0] = 0.0
            for row in table:
                alpha = [
                    add(a + float(row[u][0]),
                        alpha[u - 1] + float(row[u - 1][labels[u - 1]]) if u else -math.inf)
                    for u, a in enumerate(alpha)
                ]  # fmt: skip
            found[labels] = alpha[count]
    return found


def add(a: float, b: float) -> float:
    """Return log(exp a + exp b)."""
    high = max(a, b)
    return high if high == -math.inf else high + math.log(math.exp(a - high) + math.exp(b - high))
