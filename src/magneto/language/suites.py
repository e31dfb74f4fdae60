"""Multiple-choice suites for zero-shot and few-shot evaluation.

A record becomes an `Item`, which has a context and an ending for each option. The ending is scored.
In most suites, the context is the question, and the ending is the option. In Winogrande and
Winograd, the option fills a blank in a sentence. The context is the sentence up to and including
the option, and the ending is the rest of the sentence ("partial evaluation", arXiv 1806.02847).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from magneto.config import ConfigError
from magneto.data.files import RECORDS, Record, has_ending, stream_records, walk_files
from magneto.data.problems import BadRecord, StrictCounts, guarded
from magneto.data.sources import HubDataset, parse_source, split_of
from magneto.files import nearest_path, user_path

POSSESSIVE = ("my", "his", "her", "our", "their")
# Words that are capitalised only at the beginning of an option.
ARTICLES = ("A", "An", "The", "She", "He", "It", "They", "My", "His", "Her", "Their")


@dataclass(frozen=True)
class Item:
    """Question with options.

    Attributes:
        contexts: For each option, the text before its ending. No context ends with a space.
        endings: For each option, the text that is scored, including the space before it.
        answer: Number of the correct option.
    """

    contexts: tuple[str, ...]
    endings: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if not 0 <= self.answer < len(self.contexts):
            raise ValueError(f"the answer is not one of the {len(self.contexts)} options")
        if not all(ending.strip() for ending in self.endings):
            raise ValueError("an option has no text to score")

    @property
    def solved(self) -> str:
        """Text with the correct option, as used in a demonstration."""
        return self.contexts[self.answer] + self.endings[self.answer]


@dataclass(frozen=True)
class Suite:
    """Sources and record format of a suite.

    Attributes:
        aliases: Words in the names of the suite's files or folders.
        parse: Function that converts a record to an item. Malformed records raise KeyError or
            ValueError.
        partial: Whether the suite scores the text after a blank. The paper compares summed
            log-likelihoods for suites with a blank, and mean log-likelihoods per token for suites
            without a blank.
        hub: NAME or NAME:CONFIG on the Hugging Face hub; "" if the suite is not on the hub.
        fields: Fields of a record, for messages.
        questions: Splits to take questions from, preferred first; "" stands for a file whose name
            contains no split.
        demonstrations: Splits of the demonstrations, preferred first.
    """

    name: str
    aliases: tuple[str, ...]
    parse: Callable[[Record], Item]
    partial: bool
    hub: str
    fields: str
    questions: tuple[str, ...] = ("validation", "test", "")
    demonstrations: tuple[str, ...] = ("train",)


def options_item(context: str, options: list[str], answer: int) -> Item:
    endings = tuple(f" {option.strip()}" for option in options)
    return Item((context.strip(),) * len(options), endings, answer)


def blank_item(before: str, options: list[str], after: str, answer: int) -> Item:
    return Item(
        tuple(before + option.strip() for option in options), (after,) * len(options), answer
    )


def parse_hellaswag(record: Record) -> Item:
    if "query" in record:
        return options_item(record["query"], list(record["choices"]), int(record["label"]))
    context = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    endings = [without_brackets(ending) for ending in record["endings"]]
    return options_item(without_brackets(context), endings, int(record["label"]))


def without_brackets(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ").strip()


def parse_winogrande(record: Record) -> Item:
    before, blank, after = record["sentence"].partition("_")
    if not blank:
        raise ValueError("the sentence has no blank (_)")
    options = [record["option1"], record["option2"]]
    after = re.sub(r"^\s+", " ", after).rstrip()
    return blank_item(before, options, after, int(record["answer"]) - 1)


def parse_winograd(record: Record) -> Item:
    text, place, pronoun = record["text"], int(record["pronoun_loc"]), record["pronoun"]
    if text[place : place + len(pronoun)] != pronoun:
        raise ValueError(f"the text has no {pronoun!r} at pronoun_loc {place}")
    before, after = text[:place], text[place + len(pronoun) :]
    mark = "'s" if pronoun.lower() in POSSESSIVE else ""
    options = [_inside_sentence(before, option) + mark for option in record["options"]]
    return blank_item(_spaced(before), options, _spaced(after).rstrip(), int(record["label"]))


def _spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _inside_sentence(before: str, option: str) -> str:
    """Return an option with a lower-case first letter.

    Options that begin a sentence, or whose first word is not in `ARTICLES`, do not change.
    """
    option = option.strip()
    first = option.split()[0]
    begins = not before.strip() or before.rstrip()[-1] in ".!?"
    return option if begins or first not in ARTICLES else option[0].lower() + option[1:]


def parse_storycloze(record: Record) -> Item:
    if "InputSentence1" in record:
        story = [record[f"InputSentence{number}"] for number in range(1, 5)]
        options = [record[f"RandomFifthSentenceQuiz{number}"] for number in (1, 2)]
        answer = record["AnswerRightEnding"]
    else:
        story = [record[f"input_sentence_{number}"] for number in range(1, 5)]
        options = [record[f"sentence_quiz{number}"] for number in (1, 2)]
        answer = record["answer_right_ending"]
    return options_item(" ".join(part.strip() for part in story), options, int(answer) - 1)


def parse_copa(record: Record) -> Item:
    link = {"cause": "because", "effect": "therefore"}[record["question"]]
    options = [record["choice1"].strip(), record["choice2"].strip()]
    context = f"{record['premise'].strip().rstrip('.')} {link}"
    return options_item(context, [o[:1].lower() + o[1:] for o in options], int(record["label"]))


def parse_piqa(record: Record) -> Item:
    context = f"Question: {record['goal'].strip()}\nAnswer:"
    return options_item(context, [record["sol1"], record["sol2"]], int(record["label"]))


_WINOGRAD = "text, pronoun, pronoun_loc, options, label"

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "hellaswag", ("hellaswag",), parse_hellaswag, False, "Rowan/hellaswag",
            "activity_label, ctx_a, ctx_b, endings, label; or query, choices, label",
        ),
        Suite(
            "winogrande", ("winogrande",), parse_winogrande, True,
            "allenai/winogrande:winogrande_xl", "sentence with _, option1, option2, answer",
        ),
        Suite(
            "winograd", ("winograd", "wsc285"), parse_winograd, True,
            "lighteval/winograd_wsc:wsc285", _WINOGRAD, ("test", ""),
        ),
        Suite(
            "wsc273", ("wsc273",), parse_winograd, True,
            "lighteval/winograd_wsc:wsc273", _WINOGRAD, ("test", ""),
        ),
        Suite(
            "storycloze", ("storycloze",), parse_storycloze, False, "",
            "input_sentence_1 to input_sentence_4, sentence_quiz1, sentence_quiz2, "
            "answer_right_ending",
            ("test", "validation", ""), ("train", "validation"),
        ),
        Suite(
            "copa", ("copa",), parse_copa, False, "aps/super_glue:copa",
            "premise, question, choice1, choice2, label",
        ),
        Suite(
            "piqa", ("piqa",), parse_piqa, False, "baber/piqa", "goal, sol1, sol2, label",
        ),
    )
}  # fmt: skip
"""Built-in suites by name, in the order in which messages list them."""


@dataclass(frozen=True)
class SuiteQuestions:
    """Questions and demonstrations of a suite.

    Demonstrations come from `pool`. If `pool` is None, demonstrations come from the other
    questions. In messages, `source` names the origin of the questions, and `pool_source` names the
    origin of the demonstrations.
    """

    suite: Suite
    items: list[Item]
    pool: list[Item] | None
    source: str
    pool_source: str


def load_questions(suite: Suite, data: str | None) -> SuiteQuestions:
    """Read a suite.

    `data` is a file of questions, hf:NAME[:CONFIG[:SPLIT]], or a folder that contains files with
    the suite's name. If `data` is None, the suite is read from the hub.

    Raises:
        ConfigError: If no file matches, or several files of one split match.
        ValueError: If a record lacks a field of the suite. The message names file and record.
    """
    wanted, path = suite.questions, user_path(data or "")
    if data is None or data.startswith("hf:"):
        source = parse_source(data or f"hf:{suite.hub}") if data or suite.hub else None
        loaded = HubDataset(source).load(source.config, None) if source else {}
        splits = {name: (f"{source}, {name}", partial(iter, rows)) for name, rows in loaded.items()}
        wanted = (source.split,) if source and source.split else wanted
    elif os.path.isdir(path):
        splits = _folder_splits(suite, path)
    elif os.path.isfile(path):
        splits = {"": (str(path), partial(stream_records, path, StrictCounts()))}
    else:
        raise ConfigError([f"--data: no file or folder {data}{nearest_path(path)}"])
    split = next((split for split in wanted if split in splits), None)
    if split is None:
        where = f"in {data}" if data else "on the hub"
        names = " or ".join(f"{alias}.jsonl" for alias in suite.aliases)
        raise ConfigError([
            f"--data: no questions of {suite.name} {where}. Give a file such as {names} with the "
            f"fields {suite.fields}."
        ])  # fmt: skip
    pool = next((s for s in suite.demonstrations if s in splits and s != split), None)
    where, pool_where = (splits[name][0] if name is not None else "" for name in (split, pool))
    return SuiteQuestions(
        suite,
        parse_records(suite, splits[split][1](), where),
        None if pool is None else parse_records(suite, splits[pool][1](), pool_where),
        where,
        pool_where or "the other questions",
    )


Splits = dict[str, tuple[str, Callable[[], Iterable[Record]]]]
"""Maps a split to its source and a function that reads its records. "" stands for a file whose name
contains no split."""


def _folder_splits(suite: Suite, folder: Path) -> Splits:
    found: Splits = {}
    for path in sorted(p for p in walk_files(folder) if has_ending(p, RECORDS)):
        # The original StoryCloze files of all splits are named cloze_test.
        name = str(path.relative_to(folder)).lower().replace("cloze_test", "storycloze")
        if not {*re.split(r"[^a-z0-9]+", name)} & {*suite.aliases}:
            continue
        split = split_of(name) or ""
        if split in found:
            which = f"{split or 'question'} files for {suite.name}"
            raise ConfigError([f"--data: two {which}: {found[split][0]} and {path}. Give one."])
        found[split] = (str(path), partial(stream_records, path, StrictCounts()))
    return found


def parse_records(suite: Suite, records: Iterable[Record], source: str) -> list[Item]:
    """Convert records to questions with options. A malformed record raises ValueError."""
    items = []
    for number, record in enumerate(records, 1):
        try:
            with guarded():
                items.append(suite.parse(record))
        except BadRecord as error:
            raise ValueError(f"{source}, record {number}: {error}. The fields of {suite.name} are "
                             f"{suite.fields}.") from error  # fmt: skip
    if not items:
        raise ValueError(f"{source} has no records")
    return items
