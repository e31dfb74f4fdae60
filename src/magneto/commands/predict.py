"""`magneto predict` and `magneto generate`: predictions and generated text."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import (
    STDIN,
    Parser,
    answer,
    arriving,
    at_least_one,
    check_effect,
    check_file,
    check_folder,
    decode_input,
    is_standard_input,
    open_standard_input,
)
from magneto.config import ConfigError
from magneto.data.files import existing_path
from magneto.data.problems import BadRecord, Counts, guarded, quantity
from magneto.files import write_bytes
from magneto.progress import ProgressBars
from magneto.recipe import open_run
from magneto.runs import load_run, run_task
from magneto.tasks import TASKS

if TYPE_CHECKING:
    from magneto.data.table import Table
    from magneto.language.config import ClassificationDataConfig
    from magneto.language.labelled_texts import TextPair
    from magneto.vision.image_task import Prediction

# Images (or groups of images for one statement) in a batch.
BATCH = 32
# Options of `generate` that have an effect only on sampling.
SAMPLING = ("temperature", "top-k", "top-p", "seed")
# Texts that are sorted by length together before they are batched.
SORTED = 1024


def parser() -> Parser:
    made = Parser(
        "predict",
        "Predict labels with a trained model.\n\n"
        "Images: print labels with probabilities. A segmentation run prints the shares of the "
        "most frequent classes, and writes each image with its segmentation and a legend. For a "
        "question or statement about images, give the images first, then the text in quotes.\n\n"
        "Texts: print a label for each text. Give a text in quotes, lines (a .txt file or standard "
        "input), or a table with one text per row (.csv, .tsv, .jsonl, .json). A tab separates the "
        "two texts of a pair.\n\n"
        "Your own tasks: print a prediction for each row of a table (.csv, .tsv, .jsonl, .json).",
        "magneto predict runs/first cat.jpg dog.png photos/ --top 3\n"
        '  magneto predict runs/vqa cat.jpg "what is the cat doing?"\n'
        "  magneto predict runs/reviews new.csv --data.text_column review --probabilities\n"
        "  magneto predict runs/reviews < lines.txt > labels.tsv",
        recipe=True,
    ).with_run()
    add = made.add_argument
    what = "images, folders of images, texts in quotes, files of texts, or - for standard input"
    add("inputs", nargs="*", help=what)
    add("--top", type=at_least_one, default=5, metavar="K", help="number of labels per image")
    add("--probabilities", action="store_true", help="print the probability of every class (texts)")
    add("--out", type=Path, default=Path("predictions"), help="folder for segmented images")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    reads = run_task(args.run, overrides, "predict").reads
    task = open_run(args.run).task
    has_effect = {
        "top": reads not in ("rows", "texts"),
        "probabilities": reads == "texts",
        "out": task == "segmentation" or task not in TASKS,  # a user's task may draw pictures
    }
    check_effect(words, [name for name, has in has_effect.items() if not has], f"with {task} runs")
    if task == "segmentation":
        check_folder("--out", args.out)
    if reads == "rows":
        return predict_rows(args, overrides)
    if reads == "texts":
        return predict_texts(args, overrides)
    return predict_images(args, overrides, "" if reads == "images" else reads)


def predict_images(args: argparse.Namespace, overrides: Mapping[str, str], kind: str) -> int:
    names, text = split_words(args.inputs, kind)
    paths = image_paths(names)
    opened: Any = load_run(args.run, args.weights, overrides)
    group = opened.task.images_together if kind else 1
    if len(paths) % group:
        raise ConfigError([f"each {kind} needs {group} images, so give a multiple of {group} "
                           f"images, not {len(paths)}"])  # fmt: skip

    def ask(pictures: Sequence[Any]) -> Sequence[Any]:
        inputs = [(picture, text) for picture in pictures] if kind else pictures
        return opened.task.predict(opened.model, inputs)

    broken, taken = list[dict[str, str]](), set[str]()
    found = [(path, each.labels[: args.top], write_pictures(path, each, args.out, taken))
             for path, each in predict_readable(paths, group, ask, broken)]  # fmt: skip
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
    value = {"run": str(args.run), "weights": str(opened.weights)}
    return answer(args, {**value, "images": images, "broken": broken}, lines)


def split_words(words: Sequence[str], kind: str) -> tuple[Sequence[str], str]:
    from magneto.data.media import IMAGE_ENDINGS

    def is_image_name(word: str) -> bool:
        return word.lower().endswith(IMAGE_ENDINGS) and " " not in word

    if not words:
        raise ConfigError(["give images or folders of images: magneto predict RUN photo.jpg"])
    if not kind:
        return words, ""
    text = words[-1].strip()
    if len(words) < 2 or not text or os.path.exists(text) or is_image_name(text):
        image = next(filter(is_image_name, words[:-1]), "photo.jpg")
        raise ConfigError([f"add the {kind} in quotes after the images: "
                           f'magneto predict RUN {image} "..."'])  # fmt: skip
    return words[:-1], text


def image_paths(names: Sequence[str]) -> list[Path]:
    from magneto.data.formats import media_names

    found: list[Path] = []
    if sum(map(is_standard_input, names)) > 1:
        raise ConfigError(["standard input (-) can be given only once"])
    for name in names:
        path = Path(STDIN) if is_standard_input(name) else existing_path(name)
        inside = [path]
        if path.is_dir():
            inside = [path / image for image in media_names(path, "image", Counts())]
        if not inside:
            raise ValueError(f"no images in {path}")
        found += inside
    return found


def predict_readable(
    paths: Sequence[Path],
    group: int,
    ask: Callable[[Sequence[Any]], Sequence[Any]],
    broken: list[dict[str, str]],
) -> Iterator[tuple[Path, Any]]:
    """Yield each image with its prediction, and add each image without a prediction to `broken`.

    A group has `group` consecutive images. A group with an unreadable image is left out.
    """
    progress, size = ProgressBars(), BATCH * group
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        images, reasons = dict[int, Any](), dict[int, str]()
        for index, path in enumerate(some):
            try:
                with guarded():
                    images[index] = decode_input(path)
            except BadRecord as error:
                reasons[index] = str(error)
        for index in [*reasons]:
            first = index // group * group
            for other in range(first, first + group):
                reasons.setdefault(other, f"left out, because {some[index]} is unreadable")
                images.pop(other, None)
        broken += [{"path": str(some[n]), "reason": reasons[n]} for n in sorted(reasons)]
        if images:
            yield from zip([some[n] for n in images], ask([*images.values()]), strict=True)
        progress.update("reading images", start + len(some), len(paths))
    progress.finish()
    for each in broken:
        progress.say(f"{each['path']}: {each['reason']}")
    if len(broken) == len(paths):
        if group > 1:
            raise ValueError(f"each group of {group} images has an unreadable image")
        raise ValueError(f"none of {len(paths)} files could be read as an image")
    if broken:
        progress.say(f"{len(broken)} of {len(paths)} images were left out")


def write_pictures(path: Path, prediction: Prediction, out: Path, taken: set[str]) -> list[Path]:
    files = []
    for kind, content in prediction.pictures.items():
        numbers = chain([path.stem], (f"{path.stem}-{number}" for number in count(2)))
        name = next(n for n in (f"{stem}-{kind}.png" for stem in numbers) if n not in taken)
        taken.add(name)
        write_bytes(out / name, content)
        files.append(out / name)
    return files


def predict_texts(args: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    from magneto.language.labelled_texts import ROWS

    opened: Any = load_run(args.run, args.weights, overrides)
    task, counts, progress = opened.task, Counts(), ProgressBars()
    if args.probabilities and task.data_config.regression:
        raise ConfigError([f"--probabilities needs classes, but {args.run} predicts numbers"])
    piped = not args.inputs or is_standard_input(args.inputs[0])
    if piped and sys.stdin is not None and sys.stdin.isatty():
        progress.say("Reading texts from standard input, one per line.")
    texts: list[dict[str, Any]] = []
    cut = 0
    for rows in text_groups(args.inputs, task.data_config, counts):
        predictions = task.predict(opened.model, rows)
        cut += sum(each.truncated for each in predictions)
        counts[ROWS] += len(rows)
        for row, each in zip(rows, predictions, strict=True):
            shares = dict(each.probabilities) if args.probabilities else {}
            own_texts = (row.text,) if row.pair is None else (row.text, row.pair)
            if args.json:
                pair = {} if row.pair is None else {"pair": row.pair}
                more = {"probabilities": shares} if args.probabilities else {}
                texts.append({"text": row.text, "label": each.label, **pair, **more})
                continue
            words = " ".join(f"{name}={share:.4f}" for name, share in shares.items())
            cells = [each.label, *([words] if args.probabilities else [])]
            print("\t".join([*cells, *(" ".join(t.split()) for t in own_texts)]), flush=piped)
        progress.update("predicting texts", counts[ROWS], None)
    progress.finish()
    if not counts[ROWS]:
        raise ValueError(f"no text in {'standard input' if piped else ', '.join(args.inputs)}")
    progress.say(counts.describe(ROWS))
    if cut:
        most = task.data_config.max_length
        progress.say(f"{cut} of {counts[ROWS]} texts were truncated to {most} tokens")
    value = {"run": str(args.run), "weights": str(opened.weights), "texts": texts}
    return answer(args, value, ())  # lines of text are printed above, as they arrive


def predict_rows(args: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    import torch

    from magneto.data.stream import make_batch, map_tensors

    if not args.inputs:
        raise ConfigError(["give a table: magneto predict RUN rows.csv"])
    opened = load_run(args.run, args.weights, overrides)
    counts, progress, answers = Counts(), ProgressBars(), list[Any]()
    for name in args.inputs:
        table = replace(rows_in(name, counts), where=name)

        @torch.no_grad()
        def ask(some: Sequence[int], table: Table = table) -> Sequence[Any]:
            found = opened.task.predict(opened.model, [table[number] for number in some])
            return map_tensors(found, torch.Tensor.tolist)

        for start in range(0, len(table), SORTED):
            some = range(start, min(start + SORTED, len(table)))
            answers += make_batch(ask, some, table.place)
            progress.update("predicting rows", len(answers), None)
    progress.finish()
    progress.say(f"{quantity(len(answers), 'rows')}{counts.describe()}")
    value = {"run": str(args.run), "weights": str(opened.weights), "rows": answers}
    lines = (each if isinstance(each, str) else json.dumps(each) for each in answers)
    return answer(args, value, lines)


def rows_in(name: str, counts: Counts) -> Table:
    from magneto.data.formats import read_file

    if not is_standard_input(name):
        return read_file(check_file(name, "table"), counts)
    content = open_standard_input().read()
    ending = ".tsv" if b"\t" in content.partition(b"\n")[0] else ".csv"
    ending = ".jsonl" if content.lstrip().startswith(b"{") else ending
    with TemporaryDirectory() as folder:
        path = Path(folder, f"stdin{ending}")
        path.write_bytes(content)
        try:
            return read_file(path, counts)
        except ValueError as error:
            message = str(error).replace(str(path), "standard input (-)")
            raise ConfigError(message.splitlines()) from error


def text_groups(
    inputs: Sequence[str], data: ClassificationDataConfig, counts: Counts
) -> Iterator[list[TextPair]]:
    from magneto.language.labelled_texts import line_pairs

    if inputs and not any(map(is_standard_input, inputs)):
        rows = chain.from_iterable(input_rows(word, data, counts) for word in inputs)
        while some := list(islice(rows, SORTED)):
            yield some
        return
    if len(inputs) > 1:
        raise ConfigError(["standard input (-) must be the only input"])
    for lines in arriving(open_standard_input(), counts, SORTED):
        yield list(line_pairs(lines, data.paired))


def input_rows(word: str, data: ClassificationDataConfig, counts: Counts) -> Iterator[TextPair]:
    from magneto.language.labelled_texts import line_pairs, read_unlabelled

    if any(map(str.isspace, word)) and not os.path.exists(word):  # Path.exists fails on long texts
        return line_pairs([word], data.paired)
    return read_unlabelled(check_file(word, "text file"), data, counts)


def generate_parser() -> Parser:
    made = Parser(
        "generate",
        "Continue a prompt by sampling or beam search, with `generate` of Hugging Face "
        "transformers. An image-captioning run describes an image, or every image of a folder, by "
        "beam search.",
        'magneto generate runs/first "A function that" --new-tokens 50 --temperature 0.7\n'
        "  magneto generate runs/captions photo.jpg",
    ).with_run()
    add = made.add_argument
    what = "text to continue, an image, a folder of images, or - for standard input"
    add("prompt", nargs="?", default="", help=what)
    add("--new-tokens", type=int, default=100, help="maximum number of tokens to generate")
    what = "sampling temperature; 0: greedy"
    add("--temperature", type=float, default=0.8, metavar="T", help=what)
    add("--top-k", type=int, default=50, metavar="K", help="top-k sampling; 0: off")
    add("--top-p", type=float, default=1, metavar="P", help="nucleus sampling; 1: off")
    what = "beam width; above 1, beam search replaces sampling (default: 1; captions: 3)"
    add("--beams", type=int, help=what)
    what = "captions: score = log-probability / length ** X"
    add("--length-penalty", type=float, default=0.6, help=what)
    add("--count", type=int, default=1, help="number of continuations")
    add("--seed", type=int, default=0, help="seed of the sampling")
    return made.with_json()


def generate(words: Sequence[str]) -> int:
    args = generate_parser().parse(words)
    run_task(args.run, {}, "generate")
    captions = open_run(args.run).task == "image-captioning"
    if captions:
        check_effect(words, ("new-tokens", "count", *SAMPLING), "with image-captioning runs")
    else:
        check_effect(words, ["length-penalty"], "with causal-lm runs")
        check_effect(words, SAMPLING if (args.beams or 1) > 1 else (), "with --beams above 1")
    return describe_images(args) if captions else continue_text(args)


def continue_text(args: argparse.Namespace) -> int:
    from magneto import hf

    how = hf.Sampling(
        new_tokens=args.new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        beams=1 if args.beams is None else args.beams,
        count=args.count,
        seed=args.seed,
    )
    opened: Any = load_run(args.run, args.weights, {})
    prompt = args.prompt
    if is_standard_input(prompt):
        prompt = open_standard_input().read().decode("utf-8", errors="replace").rstrip("\n")
    texts = hf.generate(opened.model, opened.task.tokenizer, prompt, how)
    value = {"run": str(args.run), "prompt": prompt, "texts": texts}
    return answer(args, value, ["\n\n".join(texts)])


def describe_images(args: argparse.Namespace) -> int:
    from magneto.vision_language.caption_decoding import CaptionSearch

    if not args.prompt:
        raise ConfigError(["give an image or a folder of images: magneto generate RUN photo.jpg"])
    beams = 3 if args.beams is None else args.beams
    how = CaptionSearch(beams=beams, length_penalty=args.length_penalty)
    paths = image_paths([args.prompt])
    opened: Any = load_run(args.run, args.weights, {})
    broken: list[dict[str, str]] = []
    write = partial(opened.task.caption, opened.model, how=how)
    captions = dict(predict_readable(paths, 1, write, broken))
    found = [{"path": str(path), "caption": caption} for path, caption in captions.items()]
    several = len(paths) > 1
    lines = (f"{path}: {caption}" if several else caption for path, caption in captions.items())
    return answer(args, {"run": str(args.run), "images": found, "broken": broken}, lines)
