"""Which tasks a source of data is for: told by its folders, files and columns, not by its name.

How the command uses it::

    candidates("photos/")    # [Candidate("image-classification", "images in 10 folders", {})]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from magneto.config import shown
from magneto.data.files import (
    RECORDS,
    existing_path,
    has_ending,
    read_lines,
    unpacked_name,
    walk_files,
)
from magneto.data.formats import find_files, read_source
from magneto.data.media import AUDIO_ENDINGS, ENDINGS, IMAGE_ENDINGS, MediaColumn
from magneto.data.problems import Counts, counted
from magneto.data.sources import SPLITS, has_parquet, parse_source
from magneto.data.table import USUAL, Classes, Table
from magneto.files import user_path
from magneto.language.labelled_texts import WITHOUT_LABELS
from magneto.translation.text import aligned_files
from magneto.vision.config import IMAGE_FOLDERS, MASK_FOLDERS, MASK_SUFFIXES

# Values of a column by which its kind is told.
LOOKED_AT = 200
# Lines of a text by which it is told whether each is a document.
LINES_LOOKED_AT = 1000
# Words of which there are at most so many, or of which each comes so often, are classes.
MOST_CLASSES, LEAST_EACH = 2, 5
LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
         ("text1", "text2"), ("text", "text2"), ("text_a", "text_b"), ("first", "second"),
         ("text", "hypothesis"), ("text", "pair"))  # fmt: skip
VQA_QUESTIONS = re.compile(r"v2_OpenEnded_.*_questions\.json(\.gz)?")
TEXTS = (".txt",)
# Folders of texts name classes where they have so many on average: books of authors are few.
TEXTS_EACH = 20
# A longer name of a column is none, but what stands in the first row.
LONGEST_NAME = 40


@dataclass(frozen=True)
class Candidate:
    """A task that can be trained on a source.

    Attributes:
        task: Its name in `magneto.tasks.TASKS`.
        reason: What of the source says so.
        options: What the task must be told to read it, by the recipe's dotted fields.
    """

    task: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


def candidates(source: str) -> list[Candidate]:
    """Return the tasks that can be trained on a source, the likeliest first.

    Args:
        source: PATH or hf:NAME[:CONFIG[:SPLIT]].

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If nothing there is what a task is trained on; says what is there.
    """
    found = parse_source(source)
    if found.kind == "builtin":
        raise ValueError(f"{source} is built in: `magneto recipes` lists what is trained on it")
    if found.kind == "hf":
        return of_table(first_table(source))
    stem = user_path(source)
    if not stem.exists() and (codes := parallel_files(stem.parent.glob(f"{stem.name}.*"))):
        return [translation(codes)]
    path = existing_path(source)
    if path.is_dir():
        return of_folder(path, source)
    if has_ending(path, RECORDS) or path.suffix in (".tar", ".parquet"):
        return of_table(first_table(source))
    some = list(islice(read_lines(path, Counts()), LINES_LOOKED_AT))
    if len(some) > 1 and all(line.strip() for line in some):
        found = running_text(f"{path.name} is text in lines, none of them blank")
        return [replace(each, options={"data.document": "line"}) for each in found]
    return running_text(f"{path.name} is text")


def first_table(source: str) -> Table:
    """Return the table of a source that is to train on."""
    there = read_source(source, Counts(), "text")
    return there.get("train") or next(iter(there.values()))


def of_folder(folder: Path, source: str) -> list[Candidate]:
    """Return the tasks of a folder: of a layout that is known, of tables, of its kinds of files.

    Raises:
        ValueError: If no task reads it.
    """
    files = list(walk_files(folder))
    names = {path.name for path in files}
    if any(map(VQA_QUESTIONS.fullmatch, names)):
        return [Candidate("visual-question-answering", "VQA v2's files of questions")]
    if any(re.fullmatch(r"dataset.*\.json(\.gz)?", name) for name in names):
        return captions("captions in Karpathy's layout")
    if "wav.scp" in names or any(name.endswith(".trans.txt") for name in names):
        return [Candidate("transducer", "recordings with transcripts")]
    by_kind = {kind: [p for p in files if p.name.lower().endswith(own)]
               for kind, own in ENDINGS.items()}  # fmt: skip
    there = {*files}
    if any(path.with_suffix(".txt") in there for path in by_kind["audio"]):
        return [Candidate("transducer", "recordings with a .txt file beside each")]
    if has_masks(folder, by_kind["image"]):
        return [Candidate("segmentation", "a folder of images and one of masks")]
    if has_parquet(folder) or any(path.suffix == ".tar" for path in files):
        return of_table(first_table(source))
    if codes := parallel_files(files):
        return [translation(codes)]
    if tables := [path for path in files if has_ending(path, RECORDS) and path.parent == folder]:
        if "train" in find_files(folder):
            return of_table(first_table(source))
        # The table is what a task is to read, where it is one of the images; not the folder.
        table = first_table(str(tables[0]))
        if not by_kind["image"] or any(column_kind(table, n) == "image" for n in table.columns):
            first = tables[0].name
            first += f", the first of {len(tables)} tables" if len(tables) > 1 else ""
            return [Candidate(each.task, f"{first}: {each.reason}",
                              {"data.source": str(tables[0]), **each.options})
                    for each in of_table(table)]  # fmt: skip
    if by_kind["image"]:
        return [of_images(folder, by_kind["image"])]
    if texts := [path for path in files if has_ending(path, (*TEXTS, *RECORDS))]:
        as_text = running_text(counted(len(texts), "files") + " of text")
        classes = classes_of(folder, [path for path in texts if path.suffix in TEXTS])
        if len(classes) < 2:
            return as_text
        labelled = Candidate("text-classification", f"texts in {len(classes)} folders")
        few = len(texts) < TEXTS_EACH * len(classes)
        return [*as_text, labelled] if few else [labelled, *as_text]
    audio = f"; its {len(by_kind['audio'])} recordings have no transcripts: put a .txt file of its"
    audio += " name beside each, or name a table with columns audio and text"
    raise ValueError(f"nothing in {folder} is what a task is trained on: no images, tables or texts"
                     f"{audio if by_kind['audio'] else ''}")  # fmt: skip


def has_masks(folder: Path, images: Iterable[Path]) -> bool:
    """Return whether images lie in folders of images and of masks, or of splits and their masks."""
    with_images = {path.relative_to(folder).parts[0].lower() for path in images}
    of_splits = any(f"{split}{suffix}" in with_images
                    for split in with_images for suffix in MASK_SUFFIXES)  # fmt: skip
    return of_splits or bool(with_images & {*IMAGE_FOLDERS} and with_images & {*MASK_FOLDERS})


def of_images(folder: Path, images: Sequence[Path]) -> Candidate:
    """Return whether the images of a folder lie in folders of classes, or have no labels."""
    if len(classes := classes_of(folder, images)) < 2:
        return Candidate("image-modelling", f"{counted(len(images), 'images')} without labels")
    return Candidate("image-classification", f"images in {len(classes)} folders")


def classes_of(folder: Path, files: Iterable[Path]) -> set[str]:
    """Return the folders that files lie in, below those of splits if there are any."""
    places = [path.relative_to(folder).parts[:-1] for path in files]
    below = {place[0].lower() for place in places if place}
    depth = 1 + (bool(below) and below <= {*SPLITS})
    return {place[depth - 1] for place in places if len(place) >= depth} - {*WITHOUT_LABELS}


def parallel_files(files: Iterable[Path]) -> list[str]:
    """Return the languages of the first files STEM.LANGUAGE[.txt] that are side by side.

    Only codes of two letters: other endings of three are too many.
    """
    endings = ((unpacked_name(path).removesuffix(".txt").rpartition(".")[2], path)
               for path in sorted(files))  # fmt: skip
    named = [path for ending, path in endings if LANGUAGE.fullmatch(ending)]
    return list(next(iter(aligned_files(named, frozenset()).values()), ()))


def translation(languages: Sequence[str]) -> Candidate:
    """Return translation between languages."""
    options = {} if "en" in languages else {"data.pivot_language": languages[0]}
    return Candidate("translation", f"lines in {' and '.join(languages)}", options)


def running_text(reason: str, column: str = "text") -> list[Candidate]:
    """Return what text without labels is for, by the column of a table that has it."""
    options = {} if column == "text" else {"data.text_field": column}
    return [Candidate(task, reason, options) for task in ("causal-lm", "masked-lm")]


def captions(reason: str) -> list[Candidate]:
    """Return what images with captions are for."""
    return [Candidate("image-captioning", reason), Candidate("image-text-retrieval", reason)]


def of_table(table: Table) -> list[Candidate]:
    """Return the tasks that are trained on the columns of a table.

    Raises:
        ValueError: If there are none; names the columns and what is in them.
    """
    kinds = {name: column_kind(table, name) for name in table.columns}
    check_header(table, kinds)

    def named(what: str, *of_kinds: str) -> str | None:
        return table.find(what, among=[n for n, kind in kinds.items() if kind in of_kinds]) or None

    words = ("text", "class")
    images = [name for name, kind in kinds.items() if kind == "image"]
    label = named("label", "class", "number", "text")
    question, answer = named("question", *words), named("answer", *words, "list", "number")
    text = named("text", *words, "list") or named("statement", *words)
    if len(images) >= 2 and (named("statement", *words) and named("truth", *words, "number")):
        return [Candidate("visual-reasoning", "two images and a statement in each row")]
    if len(images) >= 2 and named("mask", "image"):
        return [Candidate("segmentation", "an image and a mask in each row")]
    if images and question and answer:
        return [Candidate("visual-question-answering", "an image, a question and an answer")]
    truth = named("truth", "class")
    if images and truth and kinds.get(statement := named("statement", "text") or "") == "text":
        options = {"data.question_column": statement, "data.answer_column": truth}
        if whether_true(table, truth):
            reason = f"an image, a {statement} and whether it is true"
            return [Candidate("visual-question-answering", reason, options)]
    if images:
        image = {} if named("image", "image") else {"data.image_column": images[0]}
        classes = [name for name, kind in kinds.items() if kind == "class"]
        named_so = {}
        if label is None and len(classes) == 1:
            label = classes[0]
            named_so = {"data.label_column": label}
        if label and kinds[label] == "number" and not all_whole(table, label):
            raise ValueError(f"{table.where}: labels of images in {shown(label)} are numbers with "
                             "fractions, no classes; the page 'A new task' shows a task for "
                             "numbers")  # fmt: skip
        by_label = Candidate("image-classification", f"an image and a {label}", image | named_so)
        both = captions(f"an image and a {text}") if text and text != label else []
        alone = Candidate("image-modelling", "images without labels", image)
        return ([by_label] if label else []) + both or [alone]
    if "audio" in kinds.values():
        if text:
            return [Candidate("transducer", f"a recording and its {text}")]
        raise table.no_column("text")
    languages = [name for name, kind in kinds.items()
                 if kind in words and LANGUAGE.fullmatch(name)]  # fmt: skip
    if len(languages) > 1 or "translation" in kinds:
        return [translation(languages or ["en"])]
    return of_words(table, kinds, text or question, label)


def check_header(table: Table, kinds: Mapping[str, str]) -> None:
    """Raise ValueError if a table's first line names no columns; says what to write above it."""
    if not kinds:
        raise ValueError(f"{table.where} is empty")
    names = [name.strip() for name in kinds]
    if not table.separator or not any(is_number(n) or len(n) > LONGEST_NAME for n in names):
        return
    usual = {"text": ["text", "text2"], "class": ["label"], "number": ["label"],
             "image": ["image"], "audio": ["audio"]}  # fmt: skip
    words = [(usual.get(kind) or [""]).pop(0) if usual.get(kind) else "" for kind in kinds.values()]
    header = table.separator.join(word or f"column{n}" for n, word in enumerate(words, 1))
    raise ValueError(f"{table.where}: the first line is no header ({shown(names[0])}, ...): write "
                     f"one above it: {header}".replace("\t", "<TAB>"))  # fmt: skip


def of_words(
    table: Table, kinds: Mapping[str, str], text: str | None, label: str | None
) -> list[Candidate]:
    """Return the tasks of a table of texts and labels.

    Raises:
        ValueError: If it has no texts.
    """
    plain = {name.strip().lower(): name for name in table.columns}
    options: dict[str, Any] = {}
    for first, second in PAIRS:
        if {first, second} <= plain.keys():
            text = plain[first]
            options = {"data.text_column": text, "data.pair_column": plain[second]}
    texts = [name for name, kind in kinds.items() if kind == "text" and name != label]
    if text is None and 1 <= len(texts) <= 2:
        text = texts[0]
        options = dict(zip(("data.text_column", "data.pair_column"), texts, strict=False))
    if text is None:
        there = ", ".join(f"{shown(name)} ({kind})" for name, kind in kinds.items())
        raise ValueError(f"{table.where} has columns {there}: no task of the table reads these; "
                         "the page 'A new task' shows one for a table of numbers")  # fmt: skip
    for wanted in ("class", "number"):
        others = [name for name, kind in kinds.items() if kind == wanted and name != text]
        if label is None and len(others) == 1:
            label = others[0]
            options |= {"data.label_column": label}
    if label is None:
        return running_text(f"a {text} in each row", text)
    if kinds[label] == "number":
        options |= {"data.target": "number"}
    reason = f"{'two texts' if 'data.pair_column' in options else f'a {text}'} and a {label}"
    return [Candidate("text-classification", reason, options)]


def column_kind(table: Table, name: str) -> str:
    """Return what is in a column: image, audio, class, number, list, text, or nothing."""
    column = table.columns[name]
    if isinstance(column, Classes):
        return "class"
    if isinstance(column, MediaColumn):
        kind = "audio" if name in USUAL["audio"][:1] else "image"
        keys = [column.key(int(row)).lower() for row in table.rows[:LOOKED_AT]]
        return "audio" if any(key.endswith(AUDIO_ENDINGS) for key in keys) else kind
    values = [v for v in islice((column[int(row)] for row in table.rows), LOOKED_AT * 10)
              if v not in (None, "")]  # fmt: skip
    some = values[:LOOKED_AT]
    if not some:
        return "nothing"
    if all(isinstance(value, list | dict) for value in some):
        return "image" if all("bytes" in v or "path" in v for v in some) else "list"
    words = [str(value).strip() for value in some]
    for kind, endings in (("image", IMAGE_ENDINGS), ("audio", AUDIO_ENDINGS)):
        if sum(word.lower().endswith(endings) for word in words) > len(words) / 2:
            return kind
    different = len({str(value) for value in values})
    few = different <= max(MOST_CLASSES, len(values) // LEAST_EACH)
    if all(map(is_number, words)):
        whole = all(float(word).is_integer() for word in words)
        return "class" if few and whole else "number"
    return "class" if few else "text"


def whether_true(table: Table, name: str) -> bool:
    """Return whether a column says true and false."""
    values = {str(table.columns[name][int(row)]).lower() for row in table.rows[:LOOKED_AT]}
    return values == {"true", "false"}


def all_whole(table: Table, name: str) -> bool:
    """Return whether the first numbers of a column are whole."""
    values = (table.columns[name][int(row)] for row in table.rows[:LOOKED_AT])
    return all(float(value).is_integer() for value in values if value not in (None, ""))


def is_number(word: str) -> bool:
    """Return whether a word is a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True
