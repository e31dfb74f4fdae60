"""In-context evaluation of a language model: zero-shot and few-shot (paper, section 4.1).

Each question is preceded by demonstrations, all joined by the tokenizer's end of document, `</s>`,
which also begins the text. The option with the highest log-likelihood is the answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magneto.config import ConfigError
from magneto.data.tokenizer import Tokenizer
from magneto.language.likelihood import Texts, log_likelihoods
from magneto.language.models import LanguageModel
from magneto.language.suites import Item, Questions
from magneto.progress import SILENT, Progress


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
class EncodedItem:
    """An item's tokens, without demonstrations.

    Attributes:
        sequences: One per option.
        scored: Tokens at the end of each that are scored.
    """

    sequences: tuple[list[int], ...]
    scored: tuple[int, ...]


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
        ValueError: If there are fewer demonstrations than asked for.
    """
    items = questions.items[:limit]
    seeds = tuple(seeds) if num_fewshot else tuple(seeds)[:1]
    encoded = encode_items(items, tokenizer)
    solved = _encode_solved(_pool(questions), tokenizer) if num_fewshot else []
    credits = np.zeros((2, len(seeds), len(items)))
    used = cut = 0
    for row, seed in enumerate(seeds):
        asked = list(ask(questions, encoded, solved, num_fewshot, seed, tokenizer.end, length))
        used += sum(fitted for _, fitted, _ in asked)
        cut += sum(not whole for *_, whole in asked)
        what = f"{questions.suite.name}, {num_fewshot} num_fewshot, seed {seed}"
        credits[:, row] = answer_all(model, items, [text for text, *_ in asked], what, progress)
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


def ask(
    questions: Questions,
    encoded: Sequence[EncodedItem],
    solved: Sequence[list[int]],
    num_fewshot: int,
    seed: int,
    end: int,
    length: int,
) -> Iterator[tuple[Texts, int, bool]]:
    """Yield each question after its demonstrations, as `join` returns it."""
    size = len(_pool(questions))
    for number, each in enumerate(encoded):
        excluded = number if questions.pool is None else None
        drawn = draw(size, num_fewshot, seed, number, excluded)
        yield join(each, [solved[d] for d in drawn], end, length)


def _pool(questions: Questions) -> Sequence[Item]:
    return questions.items if questions.pool is None else questions.pool


def answer_all(
    model: LanguageModel,
    items: Sequence[Item],
    texts: Sequence[Texts],
    what: str,
    progress: Progress,
) -> np.ndarray:
    """Return (2, items) credits: by summed log-likelihoods, and by their means over tokens.

    Raises:
        ValueError: If a log-likelihood is not finite.
    """
    values = log_likelihoods(
        model, texts, progress=lambda done, total: progress.update(what, done, total)
    )
    if not all(np.isfinite(value).all() for value in values):
        raise ValueError(f"{what}: a log-likelihood is not finite")
    means = [
        [v / scored for v, scored in zip(value, text.scored, strict=True)]
        for value, text in zip(values, texts, strict=True)
    ]
    return np.array(
        [
            [credit(value, item.answer) for value, item in zip(found, items, strict=True)]
            for found in (values, means)
        ]
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


def encode_items(items: Sequence[Item], tokenizer: Tokenizer) -> list[EncodedItem]:
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
        encoded.append(EncodedItem(tuple(sequences), scored))
    return encoded


def _parting(whole: list[int], context: list[int]) -> int:
    pairs = enumerate(zip(whole, context, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(whole), len(context)))


def _encode_solved(pool: Sequence[Item], tokenizer: Tokenizer) -> list[list[int]]:
    return tokenizer.encode([item.solved for item in pool])


def join(
    item: EncodedItem, demonstrations: list[list[int]], end: int, length: int
) -> tuple[Texts, int, bool]:
    """Put demonstrations before an item's options, the same before each.

    Returns:
        What to score; how many demonstrations fitted; whether the question is whole.
    """
    if max(item.scored) > length:
        cut = tuple(sequence[-length - 1 :] for sequence in item.sequences)
        scored = tuple(min(n, length) for n in item.scored)
        return Texts(cut, scored), 0, False
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
    return Texts(sequences, item.scored), fitted, lost == 0


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
