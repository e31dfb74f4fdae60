"""`magneto generate`: let a language model continue a prompt, or a captioner describe images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from magneto.commands.predict import ask_of_images, image_paths
from magneto.commands.shared import (
    Parser,
    is_standard_input,
    open_standard_input,
    print_json,
)
from magneto.config import ConfigError
from magneto.recipe import open_run
from magneto.runs import load_run, run_task


def parser() -> Parser:
    """Return the command's parser."""
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


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(words)
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
    if given.json:
        print_json({"run": str(given.run), "prompt": prompt, "texts": texts})
    else:
        print("\n\n".join(texts))
    return 0


def describe_images(given: argparse.Namespace) -> int:
    """Describe an image, or those of a folder.

    Raises:
        ConfigError: If no image is named.
        FileNotFoundError: If there is no such file or folder.
        ValueError: If nothing there is an image that can be read.
    """
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
    if given.json:
        found = [{"path": str(path), "caption": caption} for path, caption in captions.items()]
        print_json({"run": str(given.run), "images": found, "broken": broken})
    elif len(paths) == 1:
        print(*captions.values())
    else:
        print("\n".join(f"{path}: {caption}" for path, caption in captions.items()))
    return 0
