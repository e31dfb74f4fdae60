"""`magneto start`: choice of a recipe for some data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands import train
from magneto.commands.plan import try_steps
from magneto.commands.shared import Parser, answer
from magneto.config import ConfigError
from magneto.fields import as_yaml
from magneto.files import user_path
from magneto.progress import ProgressBars, clock

if TYPE_CHECKING:
    from magneto.start.advice import Advice


def parser() -> Parser:
    made = Parser(
        "start",
        "Inspect data, score simple baselines, choose a recipe, and print the training command. "
        "Data is a folder (images, recordings or text), a table (.csv, .tsv, .jsonl, .json, "
        ".parquet), tar shards, parallel text, or hf:NAME.",
        "magneto start photos/ --go",
        recipe=True,
    )
    made.add_argument("data", help="PATH or hf:NAME[:CONFIG[:SPLIT]]")
    what = "task (default: the most likely task for the data)"
    made.add_argument("--as", dest="kind", metavar="TASK", help=what)
    made.add_argument("--go", action="store_true", help="also train the recipe")
    made.add_argument("--out", type=Path, help="directory of the run (default: runs/DATA)")
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    for field, how in (("task", "--as TASK"), ("data.source", "the argument DATA")):
        if field in overrides:
            raise ConfigError([f"--{field}: use {how}"])
    out = args.out or Path("runs") / name_of(args.data)
    if args.go:
        train.check_empty(out)
    from magneto.start.candidates import candidates

    found = candidates(args.data, overrides)  # names a wrong path before torch is imported
    from magneto.start.advice import advise

    names = [each.task for each in found]
    if args.kind is not None and args.kind not in names:
        raise ConfigError([f"--as {args.kind}: {args.data} suits only {', '.join(names)}"])
    chosen = next(each for each in found if args.kind in (None, each.task))
    progress = Bars()
    advice = advise(args.data, chosen, overrides, progress)
    tried = try_steps(advice.recipe, advice.task, progress)
    progress.finish()
    line = train_command(args.data, advice, out)
    value = {
        "data": args.data, "task": chosen.task, "reason": chosen.reason,
        "also": [each.task for each in found if each is not chosen],
        "facts": dict(advice.summary.facts), "simple": dict(advice.baselines),
        "options": advice.options, "parameters": tried["parameters"],
        "steps": tried["steps"], "seconds": tried["seconds"], "command": line,
    }  # fmt: skip
    answer(args, value, [f"{args.data}: {chosen.reason} -> {chosen.task}\n",
                          *lines(advice, tried), "",
                          *closing(args, chosen, found, line)])  # fmt: skip
    if not args.go:
        return 0
    return train.main(shlex.split(line)[2:])


class Bars(ProgressBars):
    """Progress bars without messages. Messages would repeat the printed table."""

    def say(self, line: str) -> None: ...


def name_of(data: str) -> str:
    path = user_path(data)
    stem = path.resolve().name if path.exists() else data.rstrip("/").rpartition("/")[2]
    name = stem.replace(":", "-")
    return name.partition(".")[0] or name or "data"


def train_command(data: str, advice: Advice, out: Path) -> str:
    options = [f"--{name} {shlex.quote(as_yaml(value))}" for name, value in advice.options.items()
               if name != "data.source"]  # fmt: skip
    source = str(advice.options.get("data.source", data))
    words = (f"magneto train {advice.recipe.name}", f"--data {shlex.quote(source)}", *options,
             f"--out {shlex.quote(str(out))}")  # fmt: skip
    return " ".join(words)


def lines(advice: Advice, tried: Mapping[str, Any]) -> list[str]:
    metric = advice.task.primary_metric
    rows = [("data", ""), *((f"  {name}", words) for name, words in advice.summary.facts)]
    rows.append(("baselines", f"validation {metric}"))
    rows += [(f"  {name}", format_score(scores, metric)) for name, scores in advice.baselines]
    rows.append(("recipe", advice.recipe.name))
    rows += [(f"  {name}", as_yaml(value)) for name, value in advice.options.items()]
    rows.append(("cost", f"{tried['parameters']:,} parameters, {tried['steps']:,} steps, about "
                         f"{clock(tried['seconds'])} on this device"))  # fmt: skip
    wide = max(len(name) for name, _ in rows) + 2
    return [f"{name:<{wide}}{words}".rstrip() for name, words in rows] + [
        f"note: {remark}" for remark in advice.summary.remarks
    ]


def format_score(scores: Mapping[str, float], metric: str) -> str:
    names = [name for name in dict.fromkeys((metric, "loss")) if name in scores]
    return ", ".join(f"{scores[name]:.4g}" if name == metric else f"{name} {scores[name]:.4g}"
                     for name in names)  # fmt: skip


def closing(args: Any, chosen: Any, found: Sequence[Any], line: str) -> list[str]:
    others = [f"for another task: magneto start {shlex.quote(args.data)} --as {each.task}"
              for each in found if each is not chosen]  # fmt: skip
    if args.go:
        return []
    return ["to train this recipe (or repeat magneto start with --go):", f"  {line}", *others]
