"""Recipe, model, tokenizer and metrics of a finished run, in Python.

python examples/open_a_run.py runs/first
"""

import json
import sys
from pathlib import Path

import torch

from magneto.data.tokenizer import load_tokenizer
from magneto.runs import load_run


def main(run: Path) -> dict[str, float]:
    """Print the contents of a language model's run; evaluate it and return the metrics."""
    opened = load_run(run, "auto", {})  # or "best", "final", "averaged", "last", a step's number
    print(f"{opened.recipe.task}, {opened.recipe.model.placement}, {opened.weights.name}")
    tokenizer = load_tokenizer(run / "assets" / "tokenizer")
    tokens = torch.tensor([tokenizer.encode(["This function returns"])[0]])
    with torch.no_grad():
        next_token = opened.model(tokens)[0, -1].argmax()
    print("most probable next token:", repr(tokenizer.decode([int(next_token)])))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    print("training loss as (step, nats per token):", losses[:: max(1, len(losses) // 5)])
    return opened.evaluate(limit=2).metrics


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
