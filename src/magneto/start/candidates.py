"""Tasks that fit a source, according to its folders, files and columns.

Use::

    candidates("photos/")    # [Candidate("image-classification", "images in 10 folders", {})]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from magneto.config import abbreviate
from magneto.data.files import (
    RECORDS,
    existing_path,
    has_ending,
    read_lines,
    stream_records,
    unpacked_name,
    walk_files,
)
from magneto.data.formats import (
    COCO,
    KARPATHY,
    SAMPLED_NAMES,
    VQA,
    find_files,
    find_metadata,
    find_place,
    layout_files,
    read_file,
    read_source,
)
from magneto.data.media import AUDIO_ENDINGS, ENDINGS, IMAGE_ENDINGS, MediaColumn
from magneto.data.problems import Counts, join_words, quantity
from magneto.data.sources import has_parquet, parse_source, paths_by_split, split_of
from magneto.data.table import COLUMN_ALIASES, Classes, Table, by_split
from magneto.files import user_path
from magneto.speech.data import is_ljspeech

# Values that determine the kind of a column.
SAMPLED_VALUES = 200
# Lines that determine whether each line of a text is a document.
SAMPLED_LINES = 1000
# Words are classes if there are at most MIN_CLASSES, or each occurs MIN_REPEATS times on average.
MIN_CLASSES, MIN_REPEATS = 2, 5
DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}(?!\d).*", re.DOTALL)
LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
# Names of languages as titles of columns, and titles of two columns with unnamed languages.
ENGLISH = ("en", "english")
LANGUAGES = (
    "english", "arabic", "bengali", "bulgarian", "catalan", "chinese", "croatian", "czech",
    "danish", "dutch", "estonian", "finnish", "french", "german", "greek", "hebrew", "hindi",
    "hungarian", "icelandic", "indonesian", "irish", "italian", "japanese", "korean", "latin",
    "latvian", "lithuanian", "norwegian", "persian", "polish", "portuguese", "romanian", "russian",
    "serbian", "slovak", "slovenian", "spanish", "swahili", "swedish", "tamil", "thai", "turkish",
    "ukrainian", "urdu", "vietnamese", "welsh",
)  # fmt: skip
SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"))
PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
         ("text1", "text2"), ("text", "text2"), ("text_a", "text_b"), ("first", "second"),
         ("text", "hypothesis"), ("text", "pair"), ("question", "sentence"),
         ("question", "passage"))  # fmt: skip
TEXTS = (".txt", ".tokens", ".raw")
# Tables in text files: the separator in each line, least lines, ending, and a header.
SEPARATED = (("\t", 2, ".tsv", "text<TAB>label or en<TAB>de"), (";", 10, ".csv", "text;label"))
# With this many texts per folder on average, folders are likely classes. Folders with the books of
# one author have fewer texts.
TEXTS_EACH = 20
# Longest column name; a longer one is a value of the first row.
MAX_NAME_LENGTH = 40


@dataclass(frozen=True)
class Candidate:
    """A task that fits a source, with the reason and the options for reading the source."""

    task: str
    reason: str
    options: Mapping[str, Any] = field(default_factory=dict)


def candidates(source: str, given: Mapping[str, Any] | None = None) -> list[Candidate]:
    """Return the tasks that fit a source (PATH or hf:NAME), the likeliest first.

    Args:
        source: Path of a file or folder, or hf:NAME.
        given: Recipe fields that the user sets. Fields such as "data.label_column" choose columns.

    Raises:
        FileNotFoundError: If the path does not exist. The message suggests the nearest path.
        ValueError: If no task fits. The error message describes the data that were found.
    """
    given = given or {}
    found = parse_source(source)
    if found.kind == "builtin":
        raise ValueError(f"{source} is built in: `magneto recipes` lists recipes for it")
    if found.kind == "hf":
        return table_candidates(first_table(source), given)
    if (task := given.get("data.glue", "none")) != "none":
        return [Candidate("text-classification", f"the columns of GLUE's task {task}")]
    stem = user_path(source)
    if not stem.exists() and (codes := parallel_files(stem.parent.glob(f"{stem.name}.*"))):
        return [translation_candidate(codes)]
    path = existing_path(source)
    if layout_files(source, VQA):
        return [Candidate("visual-question-answering", "VQA v2's files of questions")]
    if layout_files(source, KARPATHY):
        return captions("captions in Karpathy's layout")
    if layout_files(source, COCO):
        return captions("COCO's files of captions")
    if path.is_dir():
        return folder_candidates(path, source, given)
    if has_ending(path, RECORDS) or path.suffix in (".tar", ".parquet"):
        return table_candidates(first_table(source), given)
    some = plain_lines(path)
    if len(some) > 1 and all(line.strip() for line in some):
        found = language_modelling(f"{path.name} is text without blank lines")
        return [replace(each, options={"data.document": "line"}) for each in found]
    return language_modelling(f"{path.name} is text")


def plain_lines(path: Path) -> list[str]:
    some = list(islice(read_lines(path, Counts()), SAMPLED_LINES))
    for separator, least, ending, header in SEPARATED:
        columns = min((line.count(separator) + 1 for line in some), default=1)
        if len(some) >= least and columns > 1:
            raise ValueError(
                f"{path} has {columns} columns. Rename it to {path.stem}{ending}, and "
                f"add a header line with a name for each column: {header}"
            )
    return some


def first_table(source: str) -> Table:
    splits = read_source(source, Counts(), "text")
    return splits.get("train") or next(iter(splits.values()))


def folder_candidates(folder: Path, source: str, given: Mapping[str, Any]) -> list[Candidate]:
    from magneto.vision.images import mask_folders

    files = list(walk_files(folder))
    names = {path.name for path in files}
    if any(path.name == "train.json" and is_nlvr2(path) for path in files):
        return [Candidate("visual-reasoning", "NLVR2's files of statements")]
    if "wav.scp" in names or any(name.endswith(".trans.txt") for name in names):
        return [Candidate("transducer", "recordings with transcripts")]
    if is_ljspeech(folder):
        return [Candidate("transducer", "recordings with transcripts in LJSpeech's metadata.csv")]
    by_kind = {kind: [p for p in files if p.name.lower().endswith(own)]
               for kind, own in ENDINGS.items()}  # fmt: skip
    paths = {*files}
    if any(
        {path.with_suffix(end) for end in (".txt", ".TXT")} & paths for path in by_kind["audio"]
    ):
        return [Candidate("transducer", "recordings with a .txt file beside each")]
    if by_kind["image"] and mask_folders(folder)[0]:
        return [Candidate("segmentation", "a folder of images and a folder of masks")]
    if has_parquet(folder) or any(path.suffix == ".tar" for path in files):
        return table_candidates(first_table(source), given)
    if codes := parallel_files(files):
        return [translation_candidate(codes)]
    if "train" in (found := find_files(folder)) or (found := find_metadata(folder)):
        table = read_file(found["train"], Counts())
        return table_candidates(by_split(table, Counts())["train"], given)
    if tables := [path for path in files if has_ending(path, RECORDS) and path.parent == folder]:
        found = candidates_of_tables(tables, files, by_kind["image"], given)
        if found:
            return found
    if by_kind["image"]:
        return image_candidates(folder, by_kind["image"], tables)
    return text_folder_candidates(folder, files, by_kind["audio"])


def text_folder_candidates(
    folder: Path, files: Sequence[Path], recordings: Sequence[Path]
) -> list[Candidate]:
    texts = [path for path in files if has_ending(path, (*TEXTS, *RECORDS))]
    if texts and 2 * len(recordings) < len(texts):
        for path in [path for path in texts if path.suffix == ".txt"][:SAMPLED_NAMES]:
            plain_lines(path)
        as_text = language_modelling(quantity(len(texts), "files") + " of text")
        classes = classes_of(folder, [path for path in texts if path.suffix == ".txt"])
        if len(classes) < 2:
            return as_text
        labelled = Candidate("text-classification", f"texts in {len(classes)} folders")
        few = len(texts) < TEXTS_EACH * len(classes)
        return [*as_text, labelled] if few else [labelled, *as_text]
    inner = next((path.parent for path in texts if has_ending(path, RECORDS)), folder)
    if recordings and inner != folder:
        raise ValueError(
            f"{folder} has recordings, and tables in {inner}. Give {inner} as the source."
        )
    audio = (". Its recordings have no transcripts: add a .txt file of the same name beside each "
             "recording, or use a table with columns audio and text")  # fmt: skip
    endings = join_words(sorted({path.suffix or path.name for path in files}), 5)
    others = f", but files that end in {endings}" if files else ""
    raise ValueError(f"no task fits {folder}: it has no images, tables or texts (.txt)"
                     f"{audio if recordings else others}")  # fmt: skip


def image_candidates(
    folder: Path, images: Sequence[Path], tables: Sequence[Path]
) -> list[Candidate]:
    classes, inner = classes_of(folder, images), folder
    found = quantity(len(images), "images")
    unused = f" ({tables[0].name} has no column of image files)" if tables else ""
    if (folder / "captions.txt").is_file():  # a version of Flickr8k
        unused = " (captions.txt is not read: rename it to captions.csv)"
    alone = [Candidate("image-modelling", f"{found} without labels{unused}")]
    # Food-101's classes are in images/.
    while len({path.relative_to(inner).parts[0] for path in images}) == 1 and len(images) > 1:
        inner = inner / images[0].relative_to(inner).parts[0]
        classes = classes_of(inner, images)
    if len(classes) < 2:
        return alone
    reason = f"images in {len(classes)} folders"
    if inner == folder:
        return [Candidate("image-classification", reason)]
    reason += f" of {inner.relative_to(folder)}"
    return [Candidate("image-classification", reason, {"data.source": str(inner)}), *alone]


def is_nlvr2(path: Path) -> bool:
    first = next(read_lines(path, Counts()), "")
    return bool(re.search(r'"identifier": *"train-\d+-\d+-\d+"', first))


def candidates_of_tables(
    tables: Sequence[Path], files: Sequence[Path], images: Sequence[Path], given: Mapping[str, Any]
) -> list[Candidate]:
    """Return the tasks for the tables in a folder.

    The result is [] if the folder has images, but the tables do not name them. If a table
    names the images, the recipe's `data.source` is the table, not its folder.
    """
    splits = paths_by_split(tables, [path.name for path in tables])
    own = {f"data.{what}source": str(splits[split][0])
           for what, split in (("", "train"), ("validation_", "validation"))
           if {"train", split} <= splits.keys()}  # fmt: skip
    own = own or {"data.source": str(tables[0])}
    table = first_table(own["data.source"])
    if images and not any(column_kind(table, name) == "image" for name in table.columns):
        return []
    fitting = table_candidates(table, given)
    column = fitting[0].options.get("data.text_field", "text")
    if fitting[0].task == "causal-lm" and have_field(files, column):
        return [replace(each, reason=f"{len(files)} files, {each.reason}") for each in fitting]
    first = Path(own["data.source"]).name
    first += f", one of {len(tables)} tables" if len(tables) > 1 else ""
    return [Candidate(each.task, f"{first}: {each.reason}", {**own, **each.options})
            for each in fitting]  # fmt: skip


def have_field(files: Sequence[Path], name: str) -> bool:
    """Return whether there are several files, each with records that have the field `name`."""
    records = all(has_ending(path, RECORDS) for path in files) and len(files) > 1
    return records and all(name in next(stream_records(path, Counts()), {}) for path in files)


def classes_of(folder: Path, files: Iterable[Path]) -> set[str]:
    """Return the names of the subfolders of `folder` that contain files, directly or deeper.

    If the subfolders are named after splits, return the names of the folders one level below.
    """
    from magneto.language.labelled_texts import WITHOUT_LABELS

    places = [path.relative_to(folder).parts[:-1] for path in files]
    below = {place[0].lower() for place in places if place}
    splits = {split_of(name) for name in below} - {None}
    depth = 1 + (bool(below) and len(splits) == len(below))
    return {place[depth - 1] for place in places if len(place) >= depth} - {*WITHOUT_LABELS}


def parallel_files(files: Iterable[Path]) -> list[str]:
    """Return the languages of the first files that share a stem, such as a.de and a.en.

    The files are named STEM.LANGUAGE or STEM.LANGUAGE.txt.
    """
    from magneto.translation.text import aligned_files

    endings = ((unpacked_name(path).removesuffix(".txt").rpartition(".")[2], path)
               for path in sorted(files))  # fmt: skip
    # Endings of three letters do not count as languages: many files have such endings.
    named = [path for ending, path in endings if LANGUAGE.fullmatch(ending)]
    return list(next(iter(aligned_files(named, frozenset()).values()), ()))


def language_columns(table: Table, kinds: Mapping[str, str]) -> list[str]:
    if kinds.get("translation") == "list":
        return sorted(
            {code for value in first_values(table, "translation") for code in value or ()}
        )
    plain = {name.lower(): name for name, kind in kinds.items() if kind == "text"}
    codes = [name for word, name in plain.items() if LANGUAGE.fullmatch(word) or word in LANGUAGES]
    sides = [[plain[word] for word in pair] for pair in SIDES if plain.keys() >= {*pair}]
    phrases = [pair for pair in sides if all(has_phrases(table, name) for name in pair)]
    return codes if len(codes) > 1 else next(iter(phrases), [])


def translation_candidate(languages: Sequence[str], others: bool = False) -> Candidate:
    """Return translation as the task, with the recipe options for these languages.

    Args:
        languages: Language codes, or names of the columns with the texts.
        others: Whether the table has columns besides the texts.
    """
    pivot = next((name for name in languages if name.lower() in ENGLISH), languages[0])
    options = {} if pivot == "en" else {"data.pivot_language": pivot}
    if others or not all(map(LANGUAGE.fullmatch, languages)):
        options["data.languages"] = ",".join(languages)
    return Candidate("translation", f"lines in {' and '.join(languages)}", options)


def language_modelling(reason: str, column: str = "text") -> list[Candidate]:
    options = {} if column == "text" else {"data.text_field": column}
    return [Candidate(task, reason, options) for task in ("causal-lm", "masked-lm")]


def captions(reason: str) -> list[Candidate]:
    return [Candidate("image-captioning", reason), Candidate("image-text-retrieval", reason)]


def table_candidates(table: Table, given: Mapping[str, Any]) -> list[Candidate]:
    kinds = {name: column_kind(table, name) for name in table.columns}
    check_header(table, kinds)

    def named(what: str, *of_kinds: str) -> str | None:
        if (own := given.get(f"data.{what}_column")) is not None:
            return table.find(what, own)
        among = [name for name, kind in kinds.items() if kind in of_kinds]
        return table.find(what, among=among) if among else None

    words = ("text", "class")
    images = [name for name, kind in kinds.items() if kind == "image"]
    label = named("label", "class", "number", "text")
    question, answer = named("question", *words), named("answer", *words, "list", "number")
    text = named("text", *words, "list") or named("statement", *words)
    several = named("label", "list") if label is None else None
    if len(images) >= 2 and (named("statement", *words) and named("truth", *words, "number")):
        return [Candidate("visual-reasoning", "two images and a statement in each row")]
    if len(images) >= 2 and named("mask", "image"):
        return [Candidate("segmentation", "an image and a mask in each row")]
    if images and question and answer:
        return [Candidate("visual-question-answering", "an image, a question and an answer")]
    truth = named("truth", "class")
    if images and truth and kinds.get(statement := named("statement", "text") or "") == "text":
        options = {"data.question_column": statement, "data.answer_column": truth}
        if {str(value).lower() for value in first_values(table, truth)} == {"true", "false"}:
            reason = f"an image, a {statement} and a label (true or false)"
            return [Candidate("visual-question-answering", reason, options)]
    if images:
        image = {} if named("image", "image") else {"data.image_column": images[0]}
        named_so, others = {}, ""
        classes = [name for name, kind in kinds.items() if kind == "class"]
        if label is None and classes and given.get("data.label_column") is None:
            label, others = classes[0], other_labels(classes)
            named_so = {"data.label_column": label}
        numbers = first_values(table, label) if label and kinds[label] == "number" else ()
        if not all(float(value).is_integer() for value in numbers if value not in (None, "")):
            raise ValueError(f"{table.where}: image labels in {abbreviate(label)} are fractional "
                             "numbers. Image classification needs classes. The documentation's "
                             "page 'A new task' shows a task that predicts numbers.")  # fmt: skip
        by_label = Candidate("image-classification", f"an image and a {label}{others}",
                             image | named_so)  # fmt: skip
        both = captions(f"an image and a {text}") if text else []
        if several and not both:
            table.check_one_class(several)
        alone = Candidate("image-modelling", "images without labels", image)
        phrases = text is not None and (label == text or named_so) and has_phrases(table, text)
        return ([*both, by_label] if phrases else [by_label] * bool(label) + both) or [alone]
    if "audio" in kinds.values():
        if text:
            return [Candidate("transducer", f"a recording and its {text}")]
        raise table.no_column("text")
    if len(languages := language_columns(table, kinds)) > 1:
        return [translation_candidate(languages, len(table.columns) > len(languages))]
    if several:
        table.check_one_class(several)
    if label and kinds[label] == "text" and given.get("data.label_column") is None:
        answers = first_values(table, label)
        label = None if len({*answers}) == len(answers) else label  # sentences are no classes
    return text_candidates(table, kinds, text or question, label)


def other_labels(classes: Sequence[str]) -> str:
    if len(classes) == 1:
        return ""
    return f" (or --data.label_column {' or '.join(map(shlex.quote, classes[1:]))})"


def check_header(table: Table, kinds: Mapping[str, str]) -> None:
    """Raise ValueError with a proposed header if a table's first line is not a header.

    Tables with URLs of images are refused too.
    """
    if not kinds or not len(table):
        raise ValueError(f"{table.where} has no rows")
    for name in (name for name, kind in kinds.items() if kind == "image"):
        if str(first_values(table, name)[:1]).startswith(("['http:", "['https:")):
            raise ValueError(f"{table.where} has URLs of images, not files. Download the "
                             "images, and write their paths into the table.")  # fmt: skip
    if len(table) == 1 and (lists := [name for name, kind in kinds.items() if kind == "list"]):
        raise ValueError(f"{table.where} has one record, with a list in {abbreviate(lists[0])}. "
                         "Write a list of records, or one record per line.")  # fmt: skip
    names = [name.strip() for name in kinds]
    if not table.separator or not any(map(is_value, names)):
        return
    usual = {"text": ("text", "text2"), "class": ("label",), "number": ("label",),
             "image": ("image",), "audio": ("audio",)}  # fmt: skip
    header = list[str]()
    for number, kind in enumerate(kinds.values(), 1):
        free = [word for word in usual.get(kind, ()) if word not in header]
        header.append(free[0] if free else f"column{number}")
    shown = table.separator.join(header).replace("\t", "<TAB>")
    raise ValueError(f"{table.where}: the first line is not a header ({abbreviate(names[0])}, ...)."
                     f" Add a header line such as: {shown}")  # fmt: skip


def text_candidates(
    table: Table, kinds: Mapping[str, str], text: str | None, label: str | None
) -> list[Candidate]:
    plain = {name.strip().lower(): name for name in table.columns}
    texts = [name for name, kind in kinds.items() if kind == "text" and name != label]
    phrases = [name for name in texts if has_phrases(table, name)]
    pair = next(([plain[first], plain[second]] for first, second in PAIRS
                 if {first, second} <= plain.keys()), [])  # fmt: skip
    if not pair and len(phrases) == 2 and text in (None, plain.get("title")):
        pair = phrases
    if text is None and texts:
        # A column of single words, such as names, is a text only if no other column is one.
        text = max(phrases or texts, key=lambda name: length_of(table, name))
    if text is None:
        columns = ", ".join(f"{abbreviate(name)} ({kind})" for name, kind in kinds.items())
        advice = "The documentation's page 'A new task' shows a task for a table of numbers."
        if "number" not in kinds.values():
            advice = "Write the text in one column."
        raise ValueError(f"no task fits the columns of {table.where}: {columns}. {advice}")
    options: dict[str, Any] = {"data.text_column": text}
    if pair:
        options = dict(zip(("data.text_column", "data.pair_column"), pair, strict=True))
    elif text == table.find("text"):
        options = {}
    of_kind = {wanted: [name for name, kind in kinds.items() if kind == wanted and name != text]
               for wanted in ("class", "number")}  # fmt: skip
    labels = [label] if label else of_kind["class"] or of_kind["number"]
    if pair and label is None and "score" in of_kind["number"]:  # STS-B also has classes of texts
        labels = [label := "score"]
    if not labels or (len(labels) > 1 and not of_kind["class"]):
        others = " and ".join(name for name in phrases if name != text)
        joined = f" ({others} not read; to train on several columns, join them)" if others else ""
        return language_modelling(f"texts in {text}{joined}", text)
    if labels[0] != table.find("label"):
        options |= {"data.label_column": labels[0]}
    if kinds[labels[0]] == "number":
        options |= {"data.target": "number"}
    read = " and ".join(pair or [text])
    reason = f"texts in {read}, labels in {labels[0]}{other_labels(labels)}"
    alone = language_modelling(f"texts in {text}", text) if len(labels) > 1 else []
    return [Candidate("text-classification", reason, options), *alone]


def has_phrases(table: Table, name: str) -> bool:
    values = [str(value).strip() for value in first_values(table, name)]
    # Some languages have no spaces between words.
    phrases = [v for v in values if " " in v or (len(v) > 10 and not v.isascii())]
    return len(phrases) > len(values) / 2


def length_of(table: Table, name: str) -> int:
    return sum(len(str(value)) for value in first_values(table, name))


def column_kind(table: Table, name: str) -> str:
    """Return the kind of a column.

    Inputs and labels have the kind "image", "audio", "class", "number", "list" or "text". Other
    columns have the kind "date", "row number", "constant" or "nothing" (no values).
    """
    column = table.columns[name]
    if isinstance(column, Classes):
        return "class"
    if isinstance(column, MediaColumn):
        kind = column.kind or ("audio" if name in COLUMN_ALIASES["audio"][:1] else "image")
        keys = [column.key(int(row)).lower() for row in table.rows[:SAMPLED_VALUES]]
        return "audio" if any(key.endswith(AUDIO_ENDINGS) for key in keys) else kind
    values = [v for v in islice((column[int(row)] for row in table.rows), SAMPLED_VALUES * 10)
              if v not in (None, "")]  # fmt: skip
    some = values[:SAMPLED_VALUES]
    if not some:
        return "nothing"
    if all(isinstance(value, list | dict) for value in some):
        return "image" if all("bytes" in v or "path" in v for v in some) else "list"
    words = [str(value).strip() for value in some]
    for kind, endings in (("image", IMAGE_ENDINGS), ("audio", AUDIO_ENDINGS)):
        if sum(word.lower().endswith(endings) for word in words) > len(words) / 2:
            return kind
    different = len({str(value) for value in values})
    if different == 1 and len(values) > 1:
        return "constant"
    if all(map(DATE.fullmatch, words)):
        return "date"
    few = different <= max(MIN_CLASSES, len(values) // MIN_REPEATS)
    if not few and (ending := find_place(table.root, words[:SAMPLED_NAMES])[1]):
        return "image" if ending in IMAGE_ENDINGS else "audio"
    if all(map(is_number, words)):
        whole = all(float(word).is_integer() for word in words)
        if whole and len(words) > 2 and all(float(a) < float(b) for a, b in pairwise(words)):
            return "row number"
        return "class" if few and whole else "number"
    return "class" if few else "text"


def first_values(table: Table, name: str) -> list[Any]:
    return [table.columns[name][int(row)] for row in table.rows[:SAMPLED_VALUES]]


def is_value(name: str) -> bool:
    sentence = " " in name and name.endswith((".", "!"))
    return is_number(name) or len(name) > MAX_NAME_LENGTH or sentence


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
