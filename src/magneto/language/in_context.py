"""In-context evaluation of a language model: zero-shot and few-shot (paper, section 4.1).

Each question is preceded by demonstrations, all joined by the tokenizer's end of document, `</s>`,
which also begins the text. The option with the highest log-likelihood is the answer. What all
options of a question begin with is read once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from magneto.config import ConfigError
from magneto.data.tokenizer import Tokenizer
from magneto.language.models import LanguageModel
from magneto.language.suites import Item, Questions
from magneto.nn.attention import KeyValueCache
from magneto.progress import SILENT, Progress

# Keys and values of so many positions, and so many rows of logits, exist at once.
TOKENS = 16384
LOGITS = 1024
# A batch of so many real tokens ends before padding makes it so many times as long.
ENOUGH, PADDED = 512, 1.15


@dataclass(frozen=True)
class Options:
    """Token sequences of a question that are compared with each other.

    Attributes:
        sequences: One per option.
        scored: How many tokens at the end of each are scored.
    """

    sequences: tuple[list[int], ...]
    scored: tuple[int, ...]


@dataclass(frozen=True)
class Accuracy:
    """A mean over demonstration seeds, and what it would vary by.

    Attributes:
        mean: Share of right answers, over all seeds.
        by_seed: The share for each seed.
        seed_error: Standard error of the mean over other draws of demonstrations, for these
            questions; None for fewer than two seeds.
        item_error: Standard error over other questions of the kind; each question counts once, with
            its mean over seeds, since the seeds share the questions. None for one question.
    """

    mean: float
    by_seed: tuple[float, ...]
    seed_error: float | None
    item_error: float | None


def credit(values: Sequence[float], answer: int) -> float:
    """Return 1 if the answer has the highest value, 0 if not; options that tie share the 1.

    So a model that tells no option from another gets chance, wherever the right ones stand: some
    files have them all in the first place.
    """
    best = max(values)
    return (values[answer] == best) / sum(value == best for value in values)


def accuracy(right: np.ndarray) -> Accuracy:
    """Summarise (seeds, items) numbers from 0 to 1: whether the answer was right."""
    by_seed, by_item = right.mean(axis=1), right.mean(axis=0)
    return Accuracy(
        float(right.mean()), tuple(map(float, by_seed)), _error(by_seed), _error(by_item)
    )


def _error(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / len(values) ** 0.5)


@dataclass(frozen=True)
class SuiteScore:
    """What a model reaches on a suite with a number of demonstrations.

    Attributes:
        suite: Its name.
        num_fewshot: Demonstrations asked for.
        seeds: Of their draws; the first alone for none.
        items: Questions.
        by_sum: Accuracy when log-likelihoods are summed over tokens.
        by_mean: Accuracy when they are averaged over tokens.
        partial: Whether what follows a blank is scored; then `by_sum` is the paper's accuracy,
            otherwise `by_mean`.
        chance: Expected accuracy of guessing.
        demonstrations: Those that fitted before a question, on average.
        cut: Share of questions that were too long by themselves and lost their beginning.
    """

    suite: str
    num_fewshot: int
    seeds: tuple[int, ...]
    items: int
    by_sum: Accuracy
    by_mean: Accuracy
    partial: bool
    chance: float
    demonstrations: float
    cut: float

    @property
    def main(self) -> Accuracy:
        """The accuracy that the paper's tables have."""
        return self.by_sum if self.partial else self.by_mean


def evaluate_suite(
    model: LanguageModel,
    tokenizer: Tokenizer,
    questions: Questions,
    num_fewshot: int,
    seeds: Sequence[int],
    length: int,
    limit: int | None = None,
    progress: Progress = SILENT,
) -> SuiteScore:
    """Let a model answer a suite's questions.

    Args:
        model: In evaluation mode.
        tokenizer: The model's.
        questions: Of `load_questions`.
        num_fewshot: Demonstrations before each question, drawn for each question anew.
        seeds: One pass over the questions for each; without demonstrations there is but one pass.
        length: Tokens that the model is fed at most. Demonstrations that do not fit are left out,
            the first ones first; a question that does not fit loses its beginning.
        limit: Questions at most, from the front.
        progress: Told of the work.

    Raises:
        ValueError: If there are fewer demonstrations than asked for, or a log-likelihood is not
            finite.
    """
    items = questions.items[:limit]
    pool = questions.items if questions.pool is None else questions.pool
    seeds = tuple(seeds) if num_fewshot else tuple(seeds)[:1]
    encoded = encode_items(items, tokenizer)
    solved = tokenizer.encode([item.solved for item in pool]) if num_fewshot else []
    credits = np.zeros((2, len(seeds), len(items)))  # by summed log-likelihoods, by their means
    used = cut = 0
    for row, seed in enumerate(seeds):
        asked = []
        for number, each in enumerate(encoded):
            excluded = number if questions.pool is None else None
            drawn = draw(len(pool), num_fewshot, seed, number, excluded)
            options, fitted, whole = join(each, [solved[d] for d in drawn], tokenizer.end, length)
            asked.append(options)
            used, cut = used + fitted, cut + (not whole)
        what = f"{questions.suite.name}, {num_fewshot} num_fewshot, seed {seed}"
        values = log_likelihoods(model, asked, progress=partial(progress.update, what))
        for column, (item, options, found) in enumerate(zip(items, asked, values, strict=True)):
            if not np.isfinite(found).all():
                raise ValueError(f"{what}: a log-likelihood is not finite")
            means = (np.array(found) / options.scored).tolist()
            credits[:, row, column] = credit(found, item.answer), credit(means, item.answer)
    return SuiteScore(
        suite=questions.suite.name,
        num_fewshot=num_fewshot,
        seeds=seeds,
        items=len(items),
        by_sum=accuracy(credits[0]),
        by_mean=accuracy(credits[1]),
        partial=questions.suite.partial,
        chance=float(np.mean([1 / len(item.contexts) for item in items])),
        demonstrations=used / credits[0].size,
        cut=cut / credits[0].size,
    )


def draw(size: int, num_fewshot: int, seed: int, question: int, excluded: int | None) -> list[int]:
    """Draw the demonstrations of one question: different numbers below `size`, in random order.

    They depend on the seed and the question's number alone, so a limit changes no other question's.

    Raises:
        ValueError: If there are not enough.
    """
    available = size - (excluded is not None)
    if num_fewshot > available:
        raise ValueError(f"{num_fewshot} demonstrations asked for, but there are only {available}")
    numbers = random.Random(f"{seed}:{question}").sample(range(available), num_fewshot)
    return [n + (excluded is not None and n >= excluded) for n in numbers]


def encode_items(items: Sequence[Item], tokenizer: Tokenizer) -> list[Options]:
    """Tokenise each option's context and ending together.

    What is scored begins where those tokens part from the context's own, so a token that spans the
    two is scored.
    """
    pairs = [pair for item in items for pair in zip(item.contexts, item.endings, strict=True)]
    whole = iter(tokenizer.encode([context + ending for context, ending in pairs]))
    contexts = iter(tokenizer.encode([context for context, _ in pairs]))
    encoded = []
    for item in items:
        sequences = [next(whole) for _ in item.contexts]
        begins = [_parting(each, next(contexts)) for each in sequences]
        scored = tuple(len(s) - b for s, b in zip(sequences, begins, strict=True))
        encoded.append(Options(tuple(sequences), scored))
    return encoded


def _parting(whole: list[int], context: list[int]) -> int:
    pairs = enumerate(zip(whole, context, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(whole), len(context)))


def join(
    item: Options, demonstrations: list[list[int]], end: int, length: int
) -> tuple[Options, int, bool]:
    """Put demonstrations before an item's options, the same before each.

    Returns:
        What to score; how many demonstrations fitted; whether the question is whole.
    """
    if max(item.scored) > length:
        cut = tuple(sequence[-length - 1 :] for sequence in item.sequences)
        scored = tuple(min(n, length) for n in item.scored)
        return Options(cut, scored), 0, False
    # The last token is scored, but not fed.
    room = length + 1 - max(map(len, item.sequences))
    beginning: list[int] = [end]
    fitted = 0
    for demonstration in reversed(demonstrations):
        if len(beginning) + len(demonstration) + 1 > room:
            break
        beginning = [end, *demonstration, *beginning]
        fitted += 1
    # All options lose as much, so that each is judged after the same context.
    lost = max(0, len(beginning) - room)
    sequences = tuple((beginning + sequence)[lost:] for sequence in item.sequences)
    return Options(sequences, item.scored), fitted, lost == 0


@dataclass(frozen=True)
class Piece:
    """A question and where it is cut: `shared` tokens are read once, the others per option."""

    number: int
    options: Options
    shared: int

    @property
    def longest(self) -> int:
        """Tokens that the longest option feeds after the shared ones."""
        return max(map(len, self.options.sequences)) - 1 - self.shared

    @property
    def fed(self) -> int:
        """Tokens that are fed in all, without padding."""
        return self.shared + sum(len(s) - 1 - self.shared for s in self.options.sequences)


def log_likelihoods(
    model: LanguageModel,
    questions: Sequence[Options],
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
        questions: No sequence longer than the model takes; before what is scored of each stands a
            token or more.
        share: Whether to read shared beginnings once; it changes nothing but the time.
        tokens: Positions of a batch at most, padding included, unless one question has more.
        progress: Called with questions done and all questions.

    Raises:
        ValueError: If a sequence has nothing before what is scored, or nothing that is.
    """
    if not all(
        0 < scored < len(sequence)
        for options in questions
        for sequence, scored in zip(options.sequences, options.scored, strict=True)
    ):
        raise ValueError("each sequence needs a token before those that are scored, and one that "
                         "is")  # fmt: skip
    pieces = [Piece(n, each, shared(each) if share else 0) for n, each in enumerate(questions)]
    found: list[list[float]] = [[] for _ in questions]
    done = 0
    for batch in _batches(pieces, tokens):
        with torch.no_grad():
            sums = _score(model, batch)
        for piece, values in zip(batch, sums, strict=True):
            found[piece.number] = values
        done += len(batch)
        progress(done, len(pieces))
    return found


def shared(options: Options) -> int:
    """Return how many tokens all options begin with whose logits are not needed."""
    first, *others = options.sequences
    least = min(len(s) - n for s, n in zip(options.sequences, options.scored, strict=True)) - 1
    for place in range(least):
        if any(other[place] != first[place] for other in others):
            return place
    return least


def _batches(pieces: list[Piece], tokens: int) -> Iterator[list[Piece]]:
    """Yield pieces of like length, the longest first, so that a lack of memory shows at once."""
    ordered = sorted(pieces, key=lambda piece: (piece.shared, piece.longest), reverse=True)
    batch: list[Piece] = []
    rows = longest = fed = 0
    for piece in ordered:
        options = len(piece.options.sequences)
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
    options = [len(piece.options.sequences) for piece in batch]
    rows = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(options)).to(device)
    cache = KeyValueCache()
    before, before_mask = _padded([p.options.sequences[0][: p.shared] for p in batch], device, True)
    if before.shape[1]:
        model.decoder(model.embedding(before), before_mask, cache=cache)
        cache.reorder(rows)
    fed = [sequence[p.shared : -1] for p in batch for sequence in p.options.sequences]
    tails = [
        pair for p in batch for pair in zip(p.options.sequences, p.options.scored, strict=True)
    ]
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


def score_lines(
    length: int, suites: Sequence[Questions], scores: Sequence[SuiteScore]
) -> list[str]:
    """Write our suites' scores as a table, accuracies in per cent."""
    if not scores:
        return []
    made = [
        f"{'suite':<12}{'shots':>6}{'accuracy':>10}{'± items':>9}{'± seeds':>9}{'chance':>8}"
        f"{'sum':>7}{'mean':>7}{'questions':>11}"
    ]
    for score in scores:
        main = score.main
        made.append(
            f"{score.suite:<12}{score.num_fewshot:>6}{100 * main.mean:>10.1f}"
            f"{_percent(main.item_error):>9}"
            f"{_percent(main.seed_error):>9}{100 * score.chance:>8.1f}"
            f"{100 * score.by_sum.mean:>7.1f}{100 * score.by_mean.mean:>7.1f}{score.items:>11}"
        )
    made += ["", "accuracy: by sum where a blank is filled, by mean per token elsewhere; in per "
             "cent, ± one standard error"]  # fmt: skip
    for score in scores:
        if score.demonstrations < score.num_fewshot or score.cut:
            made.append(
                f"{score.suite}, {score.num_fewshot} num_fewshot: in {length} tokens "
                f"{score.demonstrations:.2f} demonstrations fit on average; {score.cut:.1%} of the "
                "questions lost their beginning"
            )
    if any(score.num_fewshot for score in scores):
        made += [f"{each.suite.name}: demonstrations from {each.pool_source}" for each in suites]
    return made


def _percent(value: float | None) -> str:
    """Write a standard error in per cent; a dash if there is none."""
    return "-" if value is None else f"{100 * value:.1f}"


def context_length(config: Any, trained: int, asked: int | None) -> int:
    """Return the tokens to feed at most: as in training, unless asked otherwise.

    Raises:
        ConfigError: If it is more than the model has positions for.
    """
    most = config.max_length if config.positions == "learned" else None
    if asked is not None and (asked < 2 or (most is not None and asked > most)):
        raise ConfigError(
            [f"--max-length {asked}: at least 2" + (f", at most {most}" if most else "")]
        )
    return asked or min(trained, most or trained)
