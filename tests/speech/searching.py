"""A small transducer, and searches that are slow and plain, for tests."""

import math
from collections.abc import Callable
from itertools import product

import torch

from magneto.speech.decoding import Hypothesis
from magneto.speech.model import Transducer
from magneto.speech.transducer_config import TransducerConfig

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
def every_score(
    model: Transducer, encoded: torch.Tensor, most: int, per_frame: int | None
) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every sequence of at most `most` labels, over all its paths.

    Args:
        model: Of the scores.
        encoded: (frames, width).
        most: Labels.
        per_frame: Labels at one frame, at most; a frame that has them ends without a blank, as in a
            search with one label per frame. None for any number, where each frame ends by a blank.
    """
    found = {}
    for count in range(most + 1):
        for labels in product(range(1, model.config.vocab_size), repeat=count):
            table = [[after(model, frame, list(labels[:u])) for u in range(count + 1)]
                     for frame in encoded]  # fmt: skip
            alpha = [-math.inf] * (count + 1)
            alpha[0] = 0.0
            for row in table:
                if per_frame is None:
                    for u in range(count):
                        alpha[u + 1] = add(alpha[u + 1], alpha[u] + float(row[u][labels[u]]))
                    alpha = [a + float(row[u][0]) for u, a in enumerate(alpha)]
                else:
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


class Scripted:
    """A transducer of known probabilities, as far as a search asks it; its frames are numbers.

    Args:
        chances: From the labels so far and a frame to the probabilities of symbols.
        vocab_size: Blank included.
    """

    def __init__(
        self, chances: Callable[[tuple[int, ...], int], dict[int, float]], vocab_size: int
    ) -> None:
        self.chances, self.vocab_size = chances, vocab_size
        self.known: list[tuple[int, ...]] = [()]
        self.predictor = self.joiner = self

    def begin(self, batch: int, device: torch.device) -> tuple[torch.Tensor]:
        return (torch.full((batch, 1), -1, device=device),)

    def step(
        self, labels: torch.Tensor, state: tuple[torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        """Number what was said: a state is that number, -1 before the start symbol."""
        numbers = []
        for label, number in zip(labels.tolist(), state[0][:, 0].tolist(), strict=True):
            said = (*self.known[number], label) if number >= 0 else ()
            if said not in self.known:
                self.known.append(said)
            numbers.append([self.known.index(said)])
        after = torch.tensor(numbers).view(-1, 1)
        return after.float(), (after,)

    def encoder_proj(self, encoded: torch.Tensor) -> torch.Tensor:
        return encoded

    def predictor_proj(self, predicted: torch.Tensor) -> torch.Tensor:
        return predicted

    def logits(self, frames: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
        found = torch.full((*predicted.shape[:2], self.vocab_size), -30.0)
        frames = frames.expand(*predicted.shape[:2], 1)
        for row, place in product(*map(range, predicted.shape[:2])):
            said = self.known[int(predicted[row, place, 0])]
            for symbol, chance in self.chances(said, int(frames[row, place, 0])).items():
                found[row, place, symbol] = math.log(chance)
        return found
