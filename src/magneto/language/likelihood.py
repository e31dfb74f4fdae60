"""Log-likelihoods of texts under a language model; a shared beginning is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.language.models import LanguageModel
from magneto.nn.attention import KeyValueCache

# Keys and values of so many positions, and so many rows of logits, exist at once.
TOKENS = 16384
# A batch of so many real tokens ends before padding makes it so many times as long.
ENOUGH, PADDED = 512, 1.15
LOGITS = 1024


@dataclass(frozen=True)
class Texts:
    """Token sequences that are compared with each other.

    Attributes:
        sequences: One per option, each of two tokens or more.
        scored: How many tokens at the end of each are scored; one or more, but not the first.
    """

    sequences: tuple[list[int], ...]
    scored: tuple[int, ...]

    def __post_init__(self) -> None:
        pairs = zip(self.sequences, self.scored, strict=True)
        if not all(0 < scored < len(sequence) for sequence, scored in pairs):
            raise ValueError("each sequence needs a token before those that are scored, and one "
                             "that is")  # fmt: skip

    def shared(self) -> int:
        """Return how many tokens all begin with whose logits are not needed."""
        least = min(len(s) - n for s, n in zip(self.sequences, self.scored, strict=True)) - 1
        first, *others = self.sequences
        for place in range(least):
            if any(other[place] != first[place] for other in others):
                return place
        return least


@dataclass(frozen=True)
class Piece:
    """Texts and where they are cut: `shared` tokens are read once, the others per option."""

    number: int
    texts: Texts
    shared: int

    @property
    def longest(self) -> int:
        """Tokens that the longest option feeds after the shared ones."""
        return max(map(len, self.texts.sequences)) - 1 - self.shared

    @property
    def fed(self) -> int:
        """Tokens that are fed in all, without padding."""
        return self.shared + sum(len(s) - 1 - self.shared for s in self.texts.sequences)


def log_likelihoods(
    model: LanguageModel,
    texts: Sequence[Texts],
    *,
    share: bool = True,
    tokens: int = TOKENS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[float]]:
    """Return the summed log-likelihood, in nats, of each sequence's scored tokens.

    What all options of a question begin with is read once; its keys and values are then used for
    each option. Questions of like length are batched together, without regard to their order.

    Args:
        model: In evaluation mode, on its device.
        texts: Questions; no sequence longer than the model takes.
        share: Whether to read shared beginnings once; it changes nothing but the time.
        tokens: Positions of a batch at most, padding included, unless one question has more.
        progress: Called with questions done and all questions.
    """
    pieces = [Piece(n, each, each.shared() if share else 0) for n, each in enumerate(texts)]
    found: list[list[float]] = [[] for _ in texts]
    done = 0
    for batch in _batches(pieces, tokens):
        with torch.no_grad():
            sums = _score(model, batch)
        for piece, values in zip(batch, sums, strict=True):
            found[piece.number] = values
        done += len(batch)
        progress(done, len(pieces))
    return found


def _batches(pieces: list[Piece], tokens: int) -> Iterator[list[Piece]]:
    """Yield pieces of like length, the longest first, so that a lack of memory shows at once."""
    ordered = sorted(pieces, key=lambda piece: (piece.shared, piece.longest), reverse=True)
    batch: list[Piece] = []
    rows = longest = fed = 0
    for piece in ordered:
        options = len(piece.texts.sequences)
        rows, longest, fed = rows + options, max(longest, piece.longest), fed + piece.fed
        if batch and _full(len(batch) + 1, batch[0].shared, rows, longest, fed, tokens):
            yield batch
            batch, rows, longest, fed = [], options, piece.longest, piece.fed
        batch.append(piece)
    if batch:
        yield batch


def _full(pieces: int, shared: int, rows: int, longest: int, fed: int, tokens: int) -> bool:
    """Whether a batch is too large with its last piece, or too much of it padding."""
    wasteful = pieces * shared + rows * longest > PADDED * fed
    return rows * (shared + longest) > tokens or (fed > ENOUGH and wasteful)


def _score(model: LanguageModel, batch: list[Piece]) -> list[list[float]]:
    device = model.embedding.table.weight.device
    options = [len(piece.texts.sequences) for piece in batch]
    rows = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(options)).to(device)
    cache = KeyValueCache()
    before, before_mask = _padded([p.texts.sequences[0][: p.shared] for p in batch], device, True)
    if before.shape[1]:
        model.decoder(model.embedding(before), before_mask, cache=cache)
        cache.reorder(rows)
    fed = [sequence[p.shared : -1] for p in batch for sequence in p.texts.sequences]
    tails = [pair for p in batch for pair in zip(p.texts.sequences, p.texts.scored, strict=True)]
    asked = [sequence[-scored:] for sequence, scored in tails]
    after, after_mask = _padded(fed, device, False)
    mask = torch.cat((before_mask[rows], after_mask), dim=1)
    features = model.decoder(model.embedding(after), mask, cache=cache)
    ends = torch.tensor([len(each) for each in fed], device=device)[:, None]
    counts = torch.tensor([len(each) for each in asked], device=device)[:, None]
    places = torch.arange(after.shape[1], device=device)[None]
    wanted = (places >= ends - counts) & (places < ends)
    targets = torch.tensor([token for each in asked for token in each], device=device)
    values = _log_probabilities(model, features[wanted], targets)
    owner = torch.arange(len(fed), device=device).repeat_interleave(counts[:, 0])
    sums = torch.zeros(len(fed), device=device, dtype=torch.float64)
    sums.index_add_(0, owner, values)
    split = sums.cpu().split(options)
    return [each.tolist() for each in split]


def _log_probabilities(model: LanguageModel, features: Tensor, targets: Tensor) -> Tensor:
    """Return each target's log-probability, in double, `LOGITS` rows of logits at a time."""
    parts = [
        -F.cross_entropy(model.logits(rows).float(), answers, reduction="none").double()
        for rows, answers in zip(features.split(LOGITS), targets.split(LOGITS), strict=True)
    ]
    return torch.cat(parts)


def _padded(sequences: list[list[int]], device: torch.device, left: bool) -> tuple[Tensor, Tensor]:
    """Return (rows, longest) tokens, padded with zeros, and where they are real."""
    longest = max(map(len, sequences))
    filled = [
        [0] * (longest - len(s)) + s if left else s + [0] * (longest - len(s)) for s in sequences
    ]
    lengths = torch.tensor([len(s) for s in sequences])[:, None]
    places = torch.arange(longest)[None]
    real = places >= longest - lengths if left else places < lengths
    tokens = torch.tensor(filled, dtype=torch.long).reshape(len(sequences), longest)
    return tokens.to(device), real.to(device)
