"""`magneto generate`: let a language model continue a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magneto import hf
from magneto.commands.arguments import Parser, print_json
from magneto.runs import load_run


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "generate",
        "Continue a prompt, by sampling or by beam search, with transformers' generate.",
        'magneto generate runs/first "A function that" --new-tokens 50 --temperature 0.7',
    )
    made.add_argument("run", type=Path, help="directory of a run")
    made.add_argument("prompt", nargs="?", default="", help="text to continue")
    made.add_argument("--new-tokens", type=int, default=100, help="at most (100)")
    made.add_argument("--temperature", type=float, default=0.8, help="0 = most likely (0.8)")
    made.add_argument("--top-k", type=int, default=50, help="choose world so many, 0 = all (50)")
    made.add_argument("--top-p", type=float, default=1.0, help="... of this probability (1.0)")
    made.add_argument("--beams", type=int, default=1, help="beam search instead of sampling")
    made.add_argument("--count", type=int, default=1, help="continuations (1)")
    made.add_argument("--seed", type=int, default=0, help="of the sampling (0)")
    made.add_argument("--weights", default="auto", help="best (default), final, averaged, last")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    """Run the command."""
    given = parser().parse(words)
    opened: Any = load_run(given.run, given.weights, {}, verb="generate")
    how = hf.Sampling(
        new_tokens=given.new_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        beams=given.beams,
        count=given.count,
        seed=given.seed,
    )
    texts = hf.generate(opened.model, opened.task.tokenizer, given.prompt, how)
    if given.json:
        print_json({"run": str(given.run), "prompt": given.prompt, "texts": texts})
    else:
        print("\n\n".join(texts))
    return 0
