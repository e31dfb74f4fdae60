"""`magneto evaluate --tasks`: zero-shot and few-shot questions, our suites and the harness's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.shared import Parser, print_json
from magneto.config import ConfigError
from magneto.language.in_context.files import Questions, load_questions
from magneto.language.in_context.suites import SUITES
from magneto.progress import ProgressBars
from magneto.runs import load_run

if TYPE_CHECKING:
    from magneto.language.in_context.evaluate import SuiteScore


def add_options(made: Parser) -> None:
    """Add what belongs to --tasks."""
    group = made.add_argument_group("questions with options")
    group.add_argument(
        "--tasks",
        metavar="A,B",
        help=f"{', '.join(SUITES)}, or any task of lm-evaluation-harness",
    )
    group.add_argument("--num-fewshot", default="0", metavar="N,M", help="demonstrations (0)")
    group.add_argument("--seeds", default="1,2,3", metavar="N,M", help="of their draws (1,2,3)")
    group.add_argument("--max-length", type=int, help="tokens fed at most (as in training)")
    group.add_argument(
        "--include", type=Path, metavar="DIR", help="folder of the harness's task files (.yaml)"
    )


def evaluate(given: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Run `magneto evaluate RUN --tasks ...`."""
    from magneto.language.in_context.evaluate import evaluate_suite

    names = [name.strip() for name in given.tasks.split(",") if name.strip()]
    num_fewshot = numbers("--num-fewshot", given.num_fewshot)
    seeds = numbers("--seeds", given.seeds)
    if given.include is not None and not given.include.is_dir():
        raise ConfigError([f"--include: no folder {given.include}"])
    manager = harness_manager(names, given.include)
    theirs = [name for name in names if name not in SUITES]
    if given.data and Path(given.data).is_file() and len(names) - len(theirs) > 1:
        raise ConfigError(["--data: one file for several tasks; give the folder that has them"])
    suites = [load_questions(SUITES[name], given.data) for name in names if name in SUITES]
    report = ProgressBars()
    opened: Any = load_run(given.run, given.weights, overrides)
    model, tokenizer = opened.model, opened.task.tokenizer
    length = context_length(model.config, opened.recipe.data.max_length, given.max_length)
    scores = [
        evaluate_suite(
            model, tokenizer, each, count, seeds, length, given.limit, report
        )
        for each in suites
        for count in num_fewshot
    ]  # fmt: skip
    others = {}
    if theirs:
        from magneto.hf import harness

        wrapped = harness.harness_model(model, tokenizer, length)
        others = harness_results(wrapped, theirs, num_fewshot, seeds[0], manager, given.limit)
    report.finish()
    show(given, length, suites, scores, others)
    return 0


def numbers(option: str, text: str) -> list[int]:
    """Read whole numbers with commas between them.

    Raises:
        ConfigError: If one is no such number, or is there twice.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise ConfigError([f"{option} {text}: different whole numbers with commas, such as 0,1,4"])
    return [int(word) for word in words]


def harness_manager(names: Sequence[str], include: Path | None) -> Any:
    """Return the harness's tasks if one of the names is not ours, having checked all names."""
    theirs = [name for name in names if name not in SUITES]
    if not names:
        raise ConfigError([f"--tasks: name at least one; there are {', '.join(SUITES)}"])
    if not theirs:
        return None
    near = get_close_matches(theirs[0], SUITES, n=1, cutoff=0.6)
    if find_spec("lm_eval") is None:
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SUITES)}"
        raise ConfigError([
            f"--tasks: no task {theirs[0]!r}{hint} (the tasks of lm-evaluation-harness need: "
            "pip install 'foundation-transformers[eval]')"
        ])  # fmt: skip
    from magneto.hf import harness

    manager = None
    if include is not None:
        manager = harness.task_manager(include, builtin=False)
        if all(manager.match_tasks([name]) for name in theirs):
            return manager
    manager = harness.task_manager(include)
    harness.check_tasks(theirs, manager, list(SUITES))
    return manager


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


def harness_results(
    wrapped: Any,
    names: Sequence[str],
    num_fewshot: Sequence[int],
    seed: int,
    manager: Any,
    limit: int | None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the harness's metrics: number of num_fewshot, task, metric."""
    from magneto.hf import harness

    return {
        str(count): {
            task: {key: v for key, v in metrics.items() if isinstance(v, int | float)}
            for task, metrics in harness.harness_scores(
                wrapped, names, count, seed, manager, limit=limit
            )["results"].items()
        }
        for count in num_fewshot
    }


def show(
    given: argparse.Namespace,
    length: int,
    suites: Sequence[Questions],
    scores: Sequence[SuiteScore],
    others: dict[str, dict[str, dict[str, Any]]],
) -> None:
    """Print what was found, for a program or for a person."""
    if given.json:
        print_json({
            "run": str(given.run),
            "length": length,
            "sources": {
                each.suite.name: {"questions": each.source, "demonstrations": each.pool_source}
                for each in suites
            },
            "scores": [asdict(score) for score in scores],
            "harness": others,
        })  # fmt: skip
        return
    for line in lines(length, suites, scores):
        print(line)
    for count, tasks in others.items():
        for task, metrics in tasks.items():
            for metric, value in metrics.items():
                print(f"{task:<14}{count:>6} num_fewshot  {metric:<24}{value:.4f}")


def lines(length: int, suites: Sequence[Questions], scores: Sequence[SuiteScore]) -> list[str]:
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
            f"{error(main.item_error):>9}"
            f"{error(main.seed_error):>9}{100 * score.chance:>8.1f}{100 * score.by_sum.mean:>7.1f}"
            f"{100 * score.by_mean.mean:>7.1f}{score.items:>11}"
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


def error(value: float | None) -> str:
    """Write a standard error in per cent; a dash if there is none."""
    return "-" if value is None else f"{100 * value:.1f}"
