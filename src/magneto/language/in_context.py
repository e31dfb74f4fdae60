"""Zero-shot and few-shot evaluation of language models (paper, section 4.1).

Demonstrations precede each question. The end token `</s>` begins the input and follows each
demonstration. The option with the highest log-likelihood is the model's answer. The prefix that all
options of a question share is computed once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from magneto.config import ConfigError
from magneto.data.tokenizer import Tokenizer
from magneto.functional.cross_entropy import target_log_probabilities
from magneto.language.models import LanguageModel
from magneto.language.suites import Item, SuiteQuestions
from magneto.nn.attention import KeyValueCache
from magneto.progress import SILENT, Progress

# Largest batch in positions.
TOKENS = 16384
# A batch of more than ENOUGH tokens ends before padding makes it more than PADDED times as large.
ENOUGH, PADDED = 512, 1.15
# Cells of a row of the printed table.
COLUMNS = "{:<12}{:>6}{:>10}{:>9}{:>9}{:>8}{:>7}{:>7}{:>11}"


@dataclass(frozen=True)
class OptionTokens:
    """Tokens of each option of a question; the last `scored` tokens of an option are scored.

    The options are not comparable if truncation removed the whole context of an option.
    """

    sequences: tuple[list[int], ...]
    scored: tuple[int, ...]
    comparable: bool = True

    @cached_property
    def shared(self) -> int:
        """Length of the token prefix that all options share.

        The prefix ends before the first token whose logits are needed.
        """
        least = min(len(s) - n for s, n in zip(self.sequences, self.scored, strict=True)) - 1
        return min(least, _common_prefix(*self.sequences))

    @cached_property
    def rests(self) -> list[int]:
        """Number of input tokens after the shared prefix, for each option."""
        return [len(sequence) - 1 - self.shared for sequence in self.sequences]


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy over demonstration seeds, with standard errors.

    Attributes:
        mean: Share of correct answers over all seeds.
        by_seed: Accuracy for each seed.
        seed_error: Standard error over seeds, with fixed questions; None for a single seed.
        item_error: Standard error over questions, after averaging over seeds; None for a single
            question.
    """

    mean: float
    by_seed: tuple[float, ...]
    seed_error: float | None
    item_error: float | None


def answer_credit(values: Sequence[float], answer: int) -> float:
    """Return 1 if the correct option alone has the highest value.

    If n options share the highest value, a correct option among the n options gets 1 / n. If
    another option has a higher value, the result is 0. A model that scores all options equally thus
    has chance accuracy.
    """
    best = max(values)
    return (values[answer] == best) / sum(value == best for value in values)


def mean_accuracy(credits: np.ndarray) -> Accuracy:
    """Return the mean accuracy over seeds and questions.

    `credits` (seeds, questions) has a score between 0 and 1 for each answer.
    """
    by_seed, by_item = credits.mean(axis=1), credits.mean(axis=0)
    seed_error, item_error = _standard_error(by_seed), _standard_error(by_item)
    return Accuracy(float(credits.mean()), tuple(map(float, by_seed)), seed_error, item_error)


def _standard_error(values: np.ndarray) -> float | None:
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / len(values) ** 0.5)


@dataclass(frozen=True)
class SuiteScore:
    """Accuracy of a model on a suite with a given number of demonstrations.

    Attributes:
        seeds: Seeds of the demonstrations; only the first seed if there are no demonstrations.
        by_sum: Accuracy by summed log-likelihoods.
        by_mean: Accuracy by mean log-likelihoods per token.
        partial: Whether the suite scores the text after a blank. The paper reports `by_sum` for
            suites with a blank, and `by_mean` for suites without a blank.
        chance: Expected accuracy of guessing.
        demonstrations: Mean number of demonstrations that fit before a question.
        truncated: Share of questions that lost tokens at the beginning.
        guessed: Share of questions that count as guesses, because an option would have lost its
            whole context.
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
    truncated: float
    guessed: float = 0.0

    @property
    def main(self) -> Accuracy:
        """Accuracy that the paper reports: `by_sum` or `by_mean`."""
        return self.by_sum if self.partial else self.by_mean


def evaluate_suite(
    model: LanguageModel,
    tokenizer: Tokenizer,
    questions: SuiteQuestions,
    num_fewshot: int,
    seeds: Sequence[int],
    length: int,
    limit: int | None = None,
    progress: Progress = SILENT,
) -> SuiteScore:
    """Evaluate a model, in evaluation mode, on a suite.

    Each question gets `num_fewshot` random demonstrations. All questions are scored once with each
    seed. Without demonstrations, a single seed is used. Demonstrations are dropped from the
    beginning until the input fits into `length` tokens. A question that is still too long loses
    tokens at the beginning. If an option would lose its whole context, the question counts as a
    guess. If `limit` is set, only the first `limit` questions of the suite are used.

    Raises:
        ValueError: If the demonstrations are too few, or if a log-likelihood is not finite.
    """
    check_demonstrations(questions, num_fewshot)
    items = questions.items[:limit]
    pool = questions.items if questions.pool is None else questions.pool
    seeds = tuple(seeds) if num_fewshot else tuple(seeds)[:1]
    encoded = encode_items(items, tokenizer)
    solved = tokenizer.encode([item.solved for item in pool]) if num_fewshot else []
    credits = np.zeros((2, len(seeds), len(items)))  # by summed log-likelihoods, by their means
    used = truncated = guessed = 0
    for row, seed in enumerate(seeds):
        inputs = []
        for number, each in enumerate(encoded):
            excluded = number if questions.pool is None else None
            numbers = draw_demonstrations(len(pool), num_fewshot, seed, number, excluded)
            options, fitted, complete = prepend_demonstrations(
                each, [solved[n] for n in numbers], tokenizer.end, length
            )
            inputs.append(options)
            used, truncated = used + fitted, truncated + (not complete)
            guessed += not options.comparable
        what = f"{questions.suite.name}, {num_fewshot} demonstrations, seed {seed}"
        values = log_likelihoods(model, inputs, progress=partial(progress.update, what))
        for column, (item, options, sums) in enumerate(zip(items, inputs, values, strict=True)):
            if not np.isfinite(sums).all():
                raise ValueError(f"{what}: the log-likelihood of question {column + 1} is not "
                                 "finite")  # fmt: skip
            sums = sums if options.comparable else [0.0] * len(sums)
            means = (np.array(sums) / options.scored).tolist()
            credits[0, row, column] = answer_credit(sums, item.answer)
            credits[1, row, column] = answer_credit(means, item.answer)
    return SuiteScore(
        suite=questions.suite.name,
        num_fewshot=num_fewshot,
        seeds=seeds,
        items=len(items),
        by_sum=mean_accuracy(credits[0]),
        by_mean=mean_accuracy(credits[1]),
        partial=questions.suite.partial,
        chance=float(np.mean([1 / len(item.contexts) for item in items])),
        demonstrations=used / credits[0].size,
        truncated=truncated / credits[0].size,
        guessed=guessed / credits[0].size,
    )


def check_demonstrations(questions: SuiteQuestions, num_fewshot: int) -> None:
    """Raise ValueError if there are fewer than `num_fewshot` demonstrations for a question."""
    pool = questions.pool
    available = len(questions.items) - 1 if pool is None else len(pool)
    if num_fewshot > available:
        raise ValueError(f"--num-fewshot {num_fewshot}: only {available} demonstrations of "
                         f"{questions.suite.name} are available")  # fmt: skip


def draw_demonstrations(
    size: int, num_fewshot: int, seed: int, question: int, excluded: int | None
) -> list[int]:
    """Draw `num_fewshot` distinct demonstrations for a question, and return their indices.

    A limit on the number of questions does not change the demonstrations.
    """
    available = range(size - (excluded is not None))
    numbers = random.Random(f"{seed}:{question}").sample(available, num_fewshot)
    return [n + (excluded is not None and n >= excluded) for n in numbers]


def encode_items(items: Sequence[Item], tokenizer: Tokenizer) -> list[OptionTokens]:
    """Tokenise each option's context and ending together.

    A token that spans context and ending is scored.
    """
    pairs = [pair for item in items for pair in zip(item.contexts, item.endings, strict=True)]
    whole = iter(tokenizer.encode([context + ending for context, ending in pairs]))
    contexts = iter(tokenizer.encode([context for context, _ in pairs]))
    encoded = []
    for item in items:
        sequences = [next(whole) for _ in item.contexts]
        begins = [_common_prefix(each, next(contexts)) for each in sequences]
        scored = tuple(len(s) - b for s, b in zip(sequences, begins, strict=True))
        encoded.append(OptionTokens(tuple(sequences), scored))
    return encoded


def _common_prefix(*sequences: list[int]) -> int:
    places = enumerate(zip(*sequences, strict=False))
    return next((n for n, tokens in places if len({*tokens}) > 1), min(map(len, sequences)))


def prepend_demonstrations(
    item: OptionTokens, demonstrations: list[list[int]], end: int, length: int
) -> tuple[OptionTokens, int, bool]:
    """Put the same demonstrations before each option of a question.

    Returns:
        The tuple (sequences, fitted, whole): the new sequences, the number of demonstrations that
        fit, and whether the question itself was kept whole.
    """
    # The last token is scored, but it is not an input.
    available = length + 1 - max(map(len, item.sequences))
    beginning: list[int] = [end]
    fitted = 0
    for demonstration in reversed(demonstrations):
        if len(beginning) + len(demonstration) + 1 > available:
            break
        beginning = [end, *demonstration, *beginning]
        fitted += 1
    # All options lose the same tokens, so that they share one context.
    lost = max(0, len(beginning) - available)
    sequences = tuple(beginning + sequence for sequence in item.sequences)
    comparable = all(len(s) - n > lost for s, n in zip(sequences, item.scored, strict=True))
    sequences = tuple(s[lost:] if comparable else s[-length - 1 :] for s in sequences)
    scored = tuple(min(n, length) for n in item.scored)
    return OptionTokens(sequences, scored, comparable), fitted, lost == 0


def log_likelihoods(
    model: LanguageModel,
    questions: Sequence[OptionTokens],
    *,
    tokens: int = TOKENS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[float]]:
    """Return the summed log-likelihood, in nats, of each sequence's scored tokens.

    A batch has at most `tokens` positions, including padding. A question with more than `tokens`
    positions forms a separate batch. `progress` gets the number of finished questions and the
    number of all questions.

    Raises:
        ValueError: If a sequence has no scored token, or no token before the scored tokens.
    """
    if not all(
        0 < scored < len(sequence)
        for options in questions
        for sequence, scored in zip(options.sequences, options.scored, strict=True)
    ):
        raise ValueError("each sequence needs context tokens, followed by tokens to score")
    likelihoods: list[list[float]] = [[] for _ in questions]
    done = 0
    for batch in _batches(questions, tokens):
        with torch.no_grad():
            sums = _score(model, [questions[number] for number in batch])
        for number, values in zip(batch, sums, strict=True):
            likelihoods[number] = values
        done += len(batch)
        progress(done, len(questions))
    return likelihoods


def _batches(questions: Sequence[OptionTokens], tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of questions with similar lengths.

    The longest questions come first, so that a lack of memory shows at once.
    """

    def size(number: int) -> tuple[int, int]:
        return questions[number].shared, max(questions[number].rests)

    batch: list[int] = []
    options: list[int] = []  # input tokens of each option after the prefix
    inputs = 0
    for number in sorted(range(len(questions)), key=size, reverse=True):
        each = questions[number]
        options, inputs = options + each.rests, inputs + each.shared + sum(each.rests)
        if batch:
            shared, padded = questions[batch[0]].shared, len(options) * max(options)
            wasteful = (len(batch) + 1) * shared + padded > PADDED * inputs
            if len(options) * shared + padded > tokens or (inputs > ENOUGH and wasteful):
                yield batch
                batch, options, inputs = [], each.rests, each.shared + sum(each.rests)
        batch.append(number)
    if batch:
        yield batch


def _score(model: LanguageModel, batch: list[OptionTokens]) -> list[list[float]]:
    device = model.embedding.table.weight.device
    options = [len(each.sequences) for each in batch]
    rows = torch.repeat_interleave(torch.arange(len(batch)), torch.tensor(options)).to(device)
    cache = KeyValueCache()
    before, before_mask = _padded([p.sequences[0][: p.shared] for p in batch], device, "left")
    if before.shape[1]:
        model.decoder(model.embedding(before), before_mask, cache=cache)
        cache.reorder(rows)
    inputs = [sequence[p.shared : -1] for p in batch for sequence in p.sequences]
    scored = [s[-count:] for p in batch for s, count in zip(p.sequences, p.scored, strict=True)]
    after, after_mask = _padded(inputs, device, "right")
    mask = torch.cat((before_mask[rows], after_mask), dim=1)
    features = model.decoder(model.embedding(after), mask, cache=cache)
    ends = torch.tensor([len(each) for each in inputs], device=device)[:, None]
    counts = torch.tensor([len(each) for each in scored], device=device)[:, None]
    places = torch.arange(after.shape[1], device=device)[None]
    selected = (places >= ends - counts) & (places < ends)
    targets = torch.tensor([token for each in scored for token in each], device=device)
    values = target_log_probabilities(model.head, features[selected], targets)
    owner = torch.arange(len(inputs), device=device).repeat_interleave(counts[:, 0])
    sums = torch.zeros(len(inputs), device=device, dtype=torch.float64)
    sums.index_add_(0, owner, values)
    return [each.tolist() for each in sums.cpu().split(options)]


def _padded(sequences: list[list[int]], device: torch.device, side: str) -> tuple[Tensor, Tensor]:
    """Return padded tokens and a mask that is False for padding."""
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    real = [torch.ones_like(row, dtype=torch.bool) for row in rows]
    tokens, mask = (pad_sequence(part, True, padding_side=side) for part in (rows, real))
    return tokens.to(device), mask.to(device)


def score_lines(
    length: int, suites: Sequence[SuiteQuestions], scores: Sequence[SuiteScore]
) -> list[str]:
    """Return a table of the scores, with accuracies in per cent."""
    if not scores:
        return []
    lines = [
        COLUMNS.format("suite", "shots", "accuracy", "± items", "± seeds", "chance", "sum", "mean",
                       "questions")
    ]  # fmt: skip
    for score in scores:
        main, both = score.main, (score.by_sum.mean, score.by_mean.mean)
        shares = (main.mean, main.item_error, main.seed_error, score.chance, *both)
        percent = ("-" if share is None else f"{100 * share:.1f}" for share in shares)
        lines.append(COLUMNS.format(score.suite, score.num_fewshot, *percent, score.items))
    lines += ["", "Accuracies are in per cent, ± one standard error. Options are compared by their "
              "mean log-likelihood per token. In suites of sentences with a blank to fill, the sum "
              "is compared instead of the mean."]  # fmt: skip
    for score in scores:
        if score.demonstrations < score.num_fewshot or score.truncated:
            lines.append(
                f"{score.suite}, {score.num_fewshot} demonstrations: on average "
                f"{score.demonstrations:.2f} fit in {length} tokens. {score.truncated:.1%} of the "
                "questions lost their beginning. "
                f"In {score.guessed:.1%} of the questions, an option would have lost all text "
                "before its ending. These questions count as guesses."
            )
    if any(score.num_fewshot for score in scores):
        lines += [
            f"{each.suite.name}: the demonstrations are from {each.pool_source}" for each in suites
        ]
    return lines


def context_length(config: Any, trained: int, requested: int | None) -> int:
    """Return `requested`, the maximum input length in tokens.

    If `requested` is None, return `trained`, the input length in training, but at most the number
    of the model's learned positions.

    Raises:
        ConfigError: If the requested length is below 2 or exceeds the model's learned positions.
    """
    most = config.max_length if config.positions == "learned" else None
    if requested is not None and (requested < 2 or (most is not None and requested > most)):
        upper = f" and at most {most} (the model's positions)" if most else ""
        raise ConfigError([f"--max-length {requested}: must be at least 2{upper}"])
    return requested or min(trained, most or trained)
