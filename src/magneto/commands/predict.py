"""`magneto predict` and `magneto generate`: what a run's model says of images, texts and tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import (
    STDIN,
    Parser,
    answer,
    arriving,
    check_file,
    decode_input,
    ending_of,
    is_standard_input,
    open_standard_input,
    print_json,
    standard_input_as_file,
)
from magneto.config import ConfigError
from magneto.data.files import existing_path
from magneto.data.problems import BadRecord, Counts, guarded
from magneto.files import write_bytes
from magneto.progress import ProgressBars
from magneto.recipe import open_run
from magneto.runs import load_run, run_task

if TYPE_CHECKING:
    from magneto.data.table import Table
    from magneto.language.config import ClassificationDataConfig
    from magneto.language.labelled_texts import TextPair
    from magneto.vision.image_task import Prediction

# Images, or groups of images that belong together, that the model reads at once.
BATCH = 32
# Texts that are sorted by length together, before any of them is printed.
SORTED = 1024


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "predict",
        "Say what images show: labels with probabilities, or, by a segmentation run, the classes\n"
        "of their pixels, with a picture of each and a legend. A run that answers questions takes\n"
        "one after the images, in quotes.\n\n"
        "By a run that classifies texts: a line per text, its label and the text. Texts are lines\n"
        "of .txt files or of standard input, rows of .csv, .tsv, .jsonl and .json files, or\n"
        "words in quotes; a pair of texts in a line has a tab between them.\n\n"
        "By a run of a task of your own: a line per row of .csv, .tsv, .jsonl and .json files.",
        "magneto predict runs/first cat.jpg dog.png photos/ --top 3\n"
        '  magneto predict runs/vqa cat.jpg "what is the cat doing?"\n'
        "  magneto predict runs/reviews new.csv --data.text_column review --probabilities\n"
        "  magneto predict runs/reviews < lines.txt > labels.tsv",
        recipe=True,
    ).with_run()
    made.add_argument(
        "inputs", nargs="*",
        help="images or folders of them, the last word maybe a question; or texts and their files; "
        "- for standard input",
    )  # fmt: skip
    made.add_argument("--top", type=int, default=5, help="labels shown of each image (5)")
    made.add_argument(
        "--probabilities", action="store_true", help="show those of all classes, of each text"
    )
    made.add_argument(
        "--out", type=Path, default=Path("predictions"), metavar="DIR",
        help="where pictures are written, if there are any (predictions/)",
    )  # fmt: skip
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    if given.top < 1:
        made.error(f"--top {given.top}: at least 1")
    reads = run_task(given.run, overrides, "predict").reads
    if reads == "rows":
        return predict_rows(given, overrides)
    if reads == "texts":
        return predict_texts(given, overrides)
    return predict_images(given, overrides, "" if reads == "images" else reads)


def predict_images(given: argparse.Namespace, overrides: Mapping[str, str], kind: str) -> int:
    """Print what a run's model sees in images, or answers about them."""
    names, text = split_words(given.inputs, kind)
    paths = image_paths(names)
    opened: Any = load_run(given.run, given.weights, overrides, verb="predict")
    together = opened.task.images_together if kind else 1
    if len(paths) % together:
        raise ConfigError([f"a {kind} is about {together} images, and there are {len(paths)}: "
                           "name them one after the other"])  # fmt: skip

    def ask(pictures: Sequence[Any]) -> Sequence[Any]:
        inputs = [(picture, text) for picture in pictures] if kind else pictures
        return opened.task.predict(opened.model, inputs)

    broken, taken = list[dict[str, str]](), set[str]()
    found = [(path, said.labels[: given.top], write_pictures(path, said, given.out, taken))
             for path, said in ask_of_images(paths, together, ask, broken)]  # fmt: skip
    images = [
        {
            "path": str(path),
            "labels": [{"label": name, "share": share} for name, share in labels],
            "pictures": [str(file) for file in files],
        }
        for path, labels, files in found
    ]
    wide = max((len(str(path)) for path, _, _ in found), default=0)
    lines = (
        "".join([f"{path!s:<{wide}}", *(f"{share:7.1%} {name}" for name, share in labels),
                 *(f"  {file}" for file in files)])
        for path, labels, files in found
    )  # fmt: skip
    value = {"run": str(given.run), "weights": str(opened.weights)}
    return answer(given, {**value, "images": images, "broken": broken}, lines)


def split_words(words: Sequence[str], kind: str) -> tuple[Sequence[str], str]:
    """Return the names of images and what is asked about them; "" where nothing is."""
    from magneto.data.media import IMAGE_ENDINGS

    def is_image_name(word: str) -> bool:
        return word.lower().endswith(IMAGE_ENDINGS) and " " not in word

    if not words:
        raise ConfigError(["name images, or folders of them: magneto predict RUN photo.jpg"])
    if not kind:
        return words, ""
    text = words[-1].strip()
    if len(words) < 2 or not text or os.path.exists(text) or is_image_name(text):
        image = next(filter(is_image_name, words[:-1]), "photo.jpg")
        raise ConfigError([f"the run takes a {kind} after the images, in quotes: "
                           f'magneto predict RUN {image} "..."'])  # fmt: skip
    return words[:-1], text


def image_paths(names: Sequence[str]) -> list[Path]:
    """Return files, and the images in folders."""
    from magneto.data.formats import media_names

    found: list[Path] = []
    if sum(map(is_standard_input, names)) > 1:
        raise ConfigError(["standard input (-) can be read once"])
    for name in names:
        path = Path(STDIN) if is_standard_input(name) else existing_path(name)
        inside = [path]
        if path.is_dir():
            inside = [path / image for image in media_names(path, "image", Counts())]
        if not inside:
            raise ValueError(f"no images in {path}")
        found += inside
    return found


def ask_of_images(
    paths: Sequence[Path],
    together: int,
    ask: Callable[[Sequence[Any]], Sequence[Any]],
    broken: list[dict[str, str]],
) -> Iterator[tuple[Path, Any]]:
    """Yield each image that can be read, with what is said of it; say which can't be.

    Args:
        paths: Of images.
        together: How many of them, one after the other, are asked about at once: if one can't be
            read, nothing is said of the others either.
        ask: From decoded images to what is said of each.
        broken: Is given "path" and "why" of each image without an answer.

    Raises:
        ValueError: If none could be read.
    """
    report, size = ProgressBars(), BATCH * together
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        read, lost = dict[int, Any](), dict[int, str]()
        for place, path in enumerate(some):
            try:
                with guarded():
                    read[place] = decode_input(path)
            except BadRecord as error:
                lost[place] = str(error)
        for place in [*lost]:
            first = place // together * together
            for other in range(first, first + together):
                lost.setdefault(other, f"belongs to {some[place]}")
                read.pop(other, None)
        broken += [{"path": str(some[place]), "why": why} for place, why in sorted(lost.items())]
        if read:
            yield from zip([some[place] for place in read], ask([*read.values()]), strict=True)
        report.update("reading images", start + len(some), len(paths))
    report.finish()
    for each in broken:
        report.say(f"{each['path']}: {each['why']}")
    if len(broken) == len(paths):
        raise ValueError(f"none of {len(paths)} files could be read as an image")
    if broken:
        report.say(f"{len(broken)} of {len(paths)} could not be read")


def write_pictures(path: Path, said: Prediction, out: Path, taken: set[str]) -> list[Path]:
    """Write the pictures of a prediction, each under a name of its own."""
    files = []
    for kind, content in said.pictures.items():
        numbers = chain([path.stem], (f"{path.stem}-{number}" for number in count(2)))
        name = next(n for n in (f"{stem}-{kind}.png" for stem in numbers) if n not in taken)
        taken.add(name)
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / name, content)
        files.append(out / name)
    return files


def predict_texts(given: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    """Print the label of each text, with probabilities if they are asked for."""
    from magneto.language.labelled_texts import ROWS

    opened: Any = load_run(given.run, given.weights, overrides, verb="predict")
    task, counts, report = opened.task, Counts(), ProgressBars()
    if given.probabilities and task.data_config.regression:
        raise ConfigError([f"{given.run} answers with numbers, which have no --probabilities"])
    alone = not given.inputs or is_standard_input(given.inputs[0])
    if alone and sys.stdin is not None and sys.stdin.isatty():
        report.say("texts from standard input, one per line")
    texts: list[dict[str, Any]] = []
    cut = 0
    for some in text_groups(given.inputs, task.data_config, counts):
        said = task.predict(opened.model, some)
        cut += sum(each.truncated for each in said)
        counts[ROWS] += len(some)
        for row, each in zip(some, said, strict=True):
            shares = dict(each.probabilities) if given.probabilities else {}
            whole = (row.text,) if row.pair is None else (row.text, row.pair)
            if given.json:
                pair = {} if row.pair is None else {"pair": row.pair}
                asked = {"probabilities": shares} if given.probabilities else {}
                texts.append({"text": row.text, "label": each.label, **pair, **asked})
                continue
            words = " ".join(f"{name}={share:.4f}" for name, share in shares.items())
            cells = [each.label, *([words] if given.probabilities else [])]
            print("\t".join([*cells, *(" ".join(t.split()) for t in whole)]), flush=alone)
        report.update("predicting texts", counts[ROWS], None)
    report.finish()
    if not counts[ROWS]:
        raise ValueError(f"no text in {'standard input' if alone else ', '.join(given.inputs)}")
    report.say(counts.describe(ROWS))
    if cut:
        most = task.data_config.max_length
        report.say(f"{cut} of {counts[ROWS]} texts are read up to {most} tokens, the rest is not "
                   "looked at")  # fmt: skip
    if given.json:
        print_json({"run": str(given.run), "weights": str(opened.weights), "texts": texts})
    return 0


def predict_rows(given: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    """Print what a task of one's own says of each row of tables."""
    import torch

    from magneto.data.formats import read_file
    from magneto.data.stream import make_named, map_tensors

    if not given.inputs:
        raise ConfigError(["name a table: magneto predict RUN rows.csv"])
    opened = load_run(given.run, given.weights, overrides, verb="predict")
    counts, report, answers = Counts(), ProgressBars(), list[Any]()
    for name in given.inputs:
        with ExitStack() as stack:
            if is_standard_input(name):
                first = open_standard_input().readline()
                ending = ".csv" if ending_of(first) == ".txt" else ""
                path = stack.enter_context(standard_input_as_file(first, ending))
            else:
                check_file(name, "table")
                path = Path(name)
            table = read_file(path, counts)

        @torch.no_grad()
        def ask(some: Sequence[int], table: Table = table) -> Sequence[Any]:
            found = opened.task.predict(opened.model, [table[number] for number in some])
            return map_tensors(found, torch.Tensor.tolist)

        for start in range(0, len(table), SORTED):
            some = range(start, min(start + SORTED, len(table)))
            answers += make_named(ask, some, lambda number, name=name: f"{name}, row {number + 1}")
            report.update("predicting rows", len(answers), None)
    report.finish()
    report.say(f"{len(answers):,} rows{counts.describe()}")
    value = {"run": str(given.run), "weights": str(opened.weights), "rows": answers}
    lines = (each if isinstance(each, str) else json.dumps(each) for each in answers)
    return answer(given, value, lines)


def text_groups(
    inputs: Sequence[str], data: ClassificationDataConfig, counts: Counts
) -> Iterator[list[TextPair]]:
    """Yield the texts of files, those in quotes, or the lines of standard input, some at a time.

    Of standard input it is what is there: nobody who types, or whose program does, has to end it
    before there are answers.
    """
    from magneto.language.labelled_texts import line_pairs

    if inputs and not any(map(is_standard_input, inputs)):
        rows = chain.from_iterable(input_rows(word, data, counts) for word in inputs)
        while some := list(islice(rows, SORTED)):
            yield some
        return
    if len(inputs) > 1:
        raise ConfigError(["standard input (-) is read alone"])
    for lines in arriving(open_standard_input(), counts, SORTED):
        yield list(line_pairs(lines, data.paired))


def input_rows(word: str, data: ClassificationDataConfig, counts: Counts) -> Iterator[TextPair]:
    """Return the texts of a file, or a text in quotes."""
    from magneto.language.labelled_texts import line_pairs, read_unlabelled

    if any(map(str.isspace, word)) and not os.path.exists(word):  # a Path minds long texts
        return line_pairs([word], data.paired)
    path = existing_path(word)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the files of texts in it")
    return read_unlabelled(path, data, counts)


def generate_parser() -> Parser:
    """Return the parser of `magneto generate`."""
    made = Parser(
        "generate",
        "Continue a prompt, by sampling or by beam search, with transformers' generate; or, by an\n"
        "image-captioning run, describe an image or a folder of them, by beam search.",
        'magneto generate runs/first "A function that" --new-tokens 50 --temperature 0.7\n'
        "  magneto generate runs/captions photo.jpg",
    ).with_run()
    made.add_argument(
        "prompt", nargs="?", default="",
        help="text to continue; or an image, or a folder of them; - for standard input",
    )  # fmt: skip
    made.add_argument("--new-tokens", type=int, default=100, help="at most (100)")
    made.add_argument("--temperature", type=float, default=0.8, help="0 = most likely (0.8)")
    made.add_argument("--top-k", type=int, default=50, help="choose among so many, 0 = all (50)")
    made.add_argument("--top-p", type=float, default=1.0, help="... of this probability (1.0)")
    made.add_argument(
        "--beams", type=int, help="beam search instead of sampling; 3 for captions, 1 else"
    )
    made.add_argument(
        "--length-penalty", type=float, default=0.6,
        help="of captions: power of the length that scores are divided by (0.6)",
    )  # fmt: skip
    made.add_argument("--count", type=int, default=1, help="continuations (1)")
    made.add_argument("--seed", type=int, default=0, help="of the sampling (0)")
    return made.with_json()


def generate(words: Sequence[str]) -> int:
    """Run `magneto generate`."""
    given = generate_parser().parse(words)
    run_task(given.run, {}, "generate")
    captions = open_run(given.run).task == "image-captioning"
    return describe_images(given) if captions else continue_text(given)


def continue_text(given: argparse.Namespace) -> int:
    """Continue a prompt."""
    from magneto import hf

    opened: Any = load_run(given.run, given.weights, {}, verb="generate")
    how = hf.Sampling(
        new_tokens=given.new_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        beams=1 if given.beams is None else given.beams,
        count=given.count,
        seed=given.seed,
    )
    prompt = given.prompt
    if is_standard_input(prompt):
        prompt = open_standard_input().read().decode("utf-8", errors="replace").rstrip("\n")
    texts = hf.generate(opened.model, opened.task.tokenizer, prompt, how)
    value = {"run": str(given.run), "prompt": prompt, "texts": texts}
    return answer(given, value, ["\n\n".join(texts)])


def describe_images(given: argparse.Namespace) -> int:
    """Describe an image, or those of a folder."""
    from magneto.vision_language.caption_decoding import CaptionSearch

    if not given.prompt:
        raise ConfigError(["name an image, or a folder of them: magneto generate RUN photo.jpg"])
    beams = 3 if given.beams is None else given.beams
    how = CaptionSearch(beams=beams, length_penalty=given.length_penalty)
    paths = image_paths([given.prompt])
    opened: Any = load_run(given.run, given.weights, {}, verb="generate")
    broken: list[dict[str, str]] = []
    write = partial(opened.task.caption, opened.model, how=how)
    captions = dict(ask_of_images(paths, 1, write, broken))
    found = [{"path": str(path), "caption": caption} for path, caption in captions.items()]
    named = len(paths) > 1
    lines = (f"{path}: {caption}" if named else caption for path, caption in captions.items())
    return answer(given, {"run": str(given.run), "images": found, "broken": broken}, lines)
