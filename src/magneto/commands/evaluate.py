"""`magneto evaluate`: scores of a run's model."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from magneto.commands.shared import (
    Parser,
    aligned,
    answer,
    at_least_one,
    check_effect,
    check_folder,
    is_main_process,
    names,
    whole_numbers,
)
from magneto.commands.transcribe import recognition_search_options, search_of
from magneto.commands.translate import search_of as beam_search_of
from magneto.commands.translate import search_options
from magneto.config import ConfigError, nearest
from magneto.files import MANIFEST, plain, read_json, write_json, write_text
from magneto.lab.scores import SCORES
from magneto.language.suites import SUITES
from magneto.progress import ProgressBars
from magneto.recipe import open_run

# Suffix of a metric's name for the half-width of its 95 % confidence interval.
HALF_WIDTH = "_half_width"
# Tasks that support each option; "tasks" stands for the option --tasks.
SUPPORTED = {
    "answers": ("visual-question-answering",),
    "write": ("translation", "transducer"),
    "directions": ("translation",),
    "beams": ("translation", "transducer"),
    **dict.fromkeys(("length-penalty", "longest", "batch-size"), ("translation",)),
    **dict.fromkeys(("splits", "normaliser", "search", "symbols-per-frame"), ("transducer",)),
    **dict.fromkeys(("num-fewshot", "seeds", "max-length", "include"), ("tasks",)),
}


def parser() -> Parser:
    made = Parser(
        "evaluate",
        "Evaluate a run's model on validation data, or on other data (--data). With --tasks, a "
        "language model answers multiple-choice questions from the folder or file in --data. "
        "With --features, linear probes and nearest neighbours score each layer of an image "
        "model.",
        "magneto evaluate runs/first --weights best\n"
        "  magneto evaluate runs/base --data imagenet-a/ --data.candidates present "
        "--keep imagenet-a\n"
        "  magneto evaluate runs/vqa --data.validation_split test-dev2015 --answers answers.json\n"
        "  torchrun --nproc-per-node 8 -m magneto evaluate runs/base\n"
        "  magneto evaluate runs/first --tasks hellaswag --num-fewshot 0,1,4 --data items/",
        recipe=True,
    ).with_run()
    add = made.add_argument
    what = ("maximum number of batches, or of questions with --tasks (default: all); in "
            "translation, also the maximum number of sentences per direction")  # fmt: skip
    add("--limit", type=at_least_one, help=what)
    what = ("also write the metrics to RUN/scores/NAME.json for `magneto table` (with --splits: "
            "NAME-SPLIT.json)")  # fmt: skip
    add("--keep", metavar="NAME", help=what)
    what = "image models: score every layer with a linear probe and k nearest neighbours"
    add("--features", action="store_true", help=what)
    what = "visual question answering: write the answers in the format of the VQA leaderboard"
    add("--answers", type=Path, metavar="FILE", help=what)
    what = "folder for the model's translations or transcripts (default: none)"
    add("--write", type=Path, help=what)
    add = made.add_argument_group("multiple-choice suites").add_argument
    what = f"{', '.join(SUITES)}, or any task of lm-evaluation-harness"
    add("--tasks", type=names, metavar="A,B", help=what)
    what = "number of demonstrations in the prompt; several numbers are evaluated in turn"
    add("--num-fewshot", type=whole_numbers, default="0", metavar="N,M", help=what)
    what = "seeds for sampling the demonstrations"
    add("--seeds", type=whole_numbers, default="1,2,3", metavar="N,M", help=what)
    add("--max-length", type=int, help="maximum tokens of a prompt (default: as in training)")
    add("--include", type=Path, help="folder with task files (.yaml) for lm-evaluation-harness")
    group = made.add_argument_group("translation runs")
    what = ("directions to evaluate (default: all trained directions); write A>B if a language "
            "code has a dash")  # fmt: skip
    group.add_argument("--directions", type=names, metavar="A-B,C-D", help=what)
    search_options(group)
    group = made.add_argument_group("speech recognition runs")
    group.add_argument("--splits", type=names, metavar="A,B", help="splits to evaluate")
    recognition_search_options(group)
    what = "also report error rates after text normalisation: whisper-english or whisper-basic"
    group.add_argument("--normaliser", metavar="NAME", help=what)
    what = "PATH, hf:NAME or builtin:NAME (default: the recipe's data.source)"
    made.add_argument("--data", metavar="SOURCE", help=what)
    return made.with_json()


def main(words: Sequence[str]) -> int:
    args, overrides = parser().parse_with_overrides(words)
    if args.keep is not None and not re.fullmatch(r"[A-Za-z0-9._-]+", args.keep):
        raise ConfigError([f"--keep {args.keep!r}: use only letters, digits, '-', '_' and '.'"])
    from magneto.runs import run_task

    special = "tasks" if args.tasks is not None else "features" if args.features else None
    run_task(args.run, overrides, f"evaluate --{special}" if special else None)
    kind = special or open_run(args.run).task
    supported = {"keep": () if special else (kind,), **SUPPORTED}
    idle = [option for option, kinds in supported.items() if kind not in kinds]
    check_effect(words, idle, f"with --{special}" if special else f"with {kind} runs")
    check_folder("--write", args.write)
    progress = ProgressBars(quiet=not is_main_process())
    evaluate = {
        "tasks": answer_questions,
        "features": judge_features,
        "translation": evaluate_translation,
    }.get(kind, evaluate_metrics)
    if special:  # rank 0 does all the work
        return evaluate(args, overrides, progress) if is_main_process() else 0
    from magneto.training.distributed import join_world

    training = replace(open_run(args.run, overrides).training, distributed="auto")
    with join_world(training):  # every rank loads the full model
        return evaluate(args, overrides, progress)


def evaluate_metrics(
    args: argparse.Namespace, overrides: dict[str, Any], progress: ProgressBars
) -> int:
    from magneto.runs import load_run, other_data

    check_answers(args)
    own = reads_own_data(args, overrides)
    if args.data:
        overrides = {**other_data(args.run, args.data), **overrides}
    search = search_of(args) if open_run(args.run, overrides).task == "transducer" else None
    normalise, how = None, {}
    if args.normaliser:
        from magneto.speech.task import text_normaliser

        normalise, how["normaliser"] = text_normaliser(args.normaliser)
    found: dict[str, dict[str, Any]] = {}
    for split in args.splits or [""]:
        changed = split_settings(args.run, overrides, split)
        opened: Any = load_run(args.run, args.weights, changed)
        if search:
            opened.task.search = search
        metrics, predictions = opened.evaluate(args.limit, progress)
        if not is_main_process():
            continue
        if own:
            warn_changed_data(opened.task, args.run, progress)
        if search:
            metrics |= recognition_metrics(args, split, list(chain(*predictions)), normalise)
        if args.answers is not None:
            rows = [{"question_id": number, "answer": answer}
                    for number, answer in opened.task.given_answers(predictions)]  # fmt: skip
            write_json(args.answers, rows)
        keep(args, overrides, opened.weights, metrics, split)
        found[split] = {"weights": str(opened.weights), **metrics}
    progress.finish()
    if not is_main_process():
        return 0
    how |= {"search": args.search} if search else {}
    value = {"run": str(args.run), **how, **found.get("", {"splits": found})}
    lines = [*metric_lines(found), *(f"{name}: {is_}" for name, is_ in how.items())]
    return answer(args, value, lines)


def metric_lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    weights = next(iter(found.values()))["weights"]
    names = [name for name in dict.fromkeys(chain(*found.values()))
             if name != "weights" and not name.endswith(HALF_WIDTH)]  # fmt: skip
    table = [["", *found]] if len(found) > 1 else []
    for name in names:
        cells = []
        for metrics in found.values():
            value, half = metrics.get(name), metrics.get(f"{name}{HALF_WIDTH}")
            text = f"{value:.4f}" if isinstance(value, float) else str(value)
            cells.append(text if half is None else f"{text} ± {half:.4f}")
        table.append([name, *cells])
    return [f"{weights}:", *(f"  {line}" for line in aligned(table).splitlines())]


def recognition_metrics(
    args: argparse.Namespace,
    split: str,
    answers: Sequence[tuple[str, str, str]],
    normalise: Callable[[str], str] | None,
) -> dict[str, Any]:
    from magneto.speech.task import (
        count_references,
        error_rate_half_width,
        normalised_rates,
        word_errors,
    )

    if args.write:
        path = args.write / f"{split or 'validation'}.jsonl"
        rows = (dict(zip(("id", "reference", "hypothesis"), each, strict=True)) for each in answers)
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    references, hypotheses = ([each[place] for each in answers] for place in (1, 2))
    found: dict[str, Any] = {
        f"wer{HALF_WIDTH}": error_rate_half_width(references, hypotheses),
        "utterances": len(answers),
        "words": count_references(word_errors(references, hypotheses)),
    }
    return found | (normalised_rates(answers, normalise) if normalise else {})


def split_settings(run: Path, overrides: Mapping[str, Any], split: str) -> dict[str, Any]:
    if not split:
        return dict(overrides)
    from magneto.runs import other_data

    data: Any = open_run(run, overrides).data
    changed = {**other_data(run, data.source), **overrides}
    return changed | {"data.validation_source": data.source, "data.validation_splits": split}


def keep(
    args: argparse.Namespace,
    overrides: Mapping[str, Any],
    weights: Path,
    metrics: Mapping[str, Any],
    split: str = "",
) -> None:
    if not args.keep:
        return
    conditions = {"weights": weights.name, "limit": args.limit, "overrides": dict(overrides)}
    conditions["manifest"] = read_json(weights / MANIFEST)  # for `magneto table` to compare
    name = f"{args.keep}-{split.replace('/', '-')}" if split else args.keep
    write_json(args.run / SCORES / f"{name}.json", plain({"metrics": metrics, **conditions}))


def check_answers(args: argparse.Namespace) -> None:
    path = args.answers
    if path is None:
        return
    if args.limit is not None:
        raise ConfigError(["--answers: the leaderboard needs the answers to all questions; omit "
                           "--limit"])  # fmt: skip
    if path.is_dir():
        raise ConfigError([f"--answers {path} is a folder; name a file, such as "
                           f"{path / 'answers.json'}"])  # fmt: skip
    check_folder("--answers", path.parent)


def reads_own_data(args: argparse.Namespace, overrides: Mapping[str, Any]) -> bool:
    """Return whether a run is evaluated on the data of its own recipe."""
    return not (args.data or args.splits or any(name.startswith("data.") for name in overrides))


def warn_changed_data(task: Any, run: Path, progress: ProgressBars) -> None:
    from magneto.training.task import data_changed

    if data_changed(task, run):
        progress.say(f"warning: the data has changed since {run} was trained. The validation data "
                     "may now contain training examples.")  # fmt: skip


def evaluate_translation(
    args: argparse.Namespace, overrides: dict[str, Any], progress: ProgressBars
) -> int:
    from magneto.runs import load_run, other_data, run_tokenizer
    from magneto.translation.prepare import read_tags
    from magneto.translation.task import (
        TextTranslator,
        describe_scores,
        score_directions,
        score_lines,
    )
    from magneto.translation.text import read_test_texts, read_validation_texts, select_directions

    how = beam_search_of(args)
    own = reads_own_data(args, overrides)
    data: Any = open_run(args.run, overrides).data
    if args.data:
        known = read_tags(Path(run_tokenizer(args.run)))
        texts = read_test_texts(args.data, data, known, args.directions, args.limit)
        other = other_data(args.run, args.data)
        overrides = {**other, **overrides, "data.languages": ",".join(known)}
    else:
        texts = select_directions(read_validation_texts(data, args.limit), args.directions)
    selected = {"data.directions": ",".join(f"{a}>{b}" for a, b in texts.texts)}
    overrides |= {"data.select_by": "loss"}  # the translations are scored below
    # Other directions in the recipe would tokenise the training text again.
    overrides |= selected if args.data else {}
    opened: Any = load_run(args.run, args.weights, overrides)
    opened.task.directions = list(texts.texts)
    source = args.data or data.source
    # The loss covers sentences that pass the recipe's filters. BLEU and chrF cover all sentences.
    metrics, _ = opened.evaluate(args.limit, progress)
    if not is_main_process():
        return 0
    if own:
        warn_changed_data(opened.task, args.run, progress)
    progress.say(f"{source} ({texts.split}): {texts.describe()}")
    translator = TextTranslator(opened.model, opened.task.vocabulary, data.max_length, how)
    scores, written = score_directions(translator, texts.texts, progress)
    progress.finish()
    for direction, lines in written.items() if args.write else ():
        text = "".join(" ".join(line.splitlines()) + "\n" for line in lines)
        write_text(args.write / f"{'-'.join(direction)}.txt", text)
    result = {"run": str(args.run), "weights": str(opened.weights), "data": source, **metrics}
    result |= describe_scores(texts.split, scores, data.pivot_language)
    result["search"] = {name: getattr(how, name) for name in ("beams", "length_penalty", "longest")}
    averages = {name: result[f"{name}_average"]["both"] for name in ("bleu", "chrf")}
    keep(args, overrides | selected, opened.weights, {**metrics, **averages})
    return answer(args, result, score_lines(result, scores))


def judge_features(
    args: argparse.Namespace, overrides: dict[str, Any], progress: ProgressBars
) -> int:
    from magneto.data.problems import quantity
    from magneto.runs import load_run
    from magneto.vision.frozen_features import collect_features, score_features, score_lines

    if args.data:
        other = {"data.source": args.data, "data.validation_source": None, "data.classes": None}
        overrides = {**other, **overrides}
    opened: Any = load_run(args.run, args.weights, overrides)
    train, held = collect_features(opened.task, opened.model, args.limit, progress)
    scores = score_features(train, held, progress)
    progress.finish()
    for part in (train, held):
        if part.broken:
            progress.say(f"{quantity(part.broken, 'unreadable images')} left out")
    value = {
        "run": str(args.run), "weights": str(opened.weights),
        "training_images": len(train.labels), "validation_images": len(held.labels),
        "scores": scores,
    }  # fmt: skip
    head = (f"{opened.weights}: {len(train.labels):,} training images, "
            f"{len(held.labels):,} validation images")  # fmt: skip
    return answer(args, value, [head, *score_lines(scores)])


def answer_questions(
    args: argparse.Namespace, overrides: dict[str, str], progress: ProgressBars
) -> int:
    from magneto.language.in_context import (
        check_demonstrations,
        context_length,
        evaluate_suite,
        score_lines,
    )
    from magneto.language.suites import load_questions
    from magneto.runs import load_run

    tasks, seeds = args.tasks, args.seeds
    if args.include is not None and not args.include.is_dir():
        raise ConfigError([f"--include: no folder {args.include}"])
    theirs = [name for name in tasks if name not in SUITES]
    manager = harness_manager(theirs, args.include) if theirs else None
    if args.data and Path(args.data).is_file() and len(tasks) - len(theirs) > 1:
        raise ConfigError(["--data: several tasks need a folder, not one file"])
    suites = [load_questions(SUITES[name], args.data) for name in tasks if name in SUITES]
    for each in suites:
        check_demonstrations(each, max(args.num_fewshot))
    opened: Any = load_run(args.run, args.weights, overrides)
    model, tokenizer = opened.model, opened.task.tokenizer
    length = context_length(model.config, opened.recipe.data.max_length, args.max_length)
    scores = [
        evaluate_suite(model, tokenizer, each, count, seeds, length, args.limit, progress)
        for each in suites
        for count in args.num_fewshot
    ]
    others: dict[str, dict[str, dict[str, float]]] = {}
    if theirs:
        from magneto.hf.export import harness_model, harness_scores

        wrapped = harness_model(model, tokenizer, length)
        for count in args.num_fewshot:
            found = harness_scores(wrapped, theirs, count, seeds[0], manager, limit=args.limit)
            others[str(count)] = {
                task: {
                    key: value for key, value in metrics.items() if isinstance(value, int | float)
                }
                for task, metrics in found["results"].items()
            }
    progress.finish()
    value = {
        "run": str(args.run), "length": length,
        "sources": {
            each.suite.name: {"questions": each.source, "demonstrations": each.pool_source}
            for each in suites
        },
        "scores": [asdict(score) for score in scores], "harness": others,
    }  # fmt: skip
    lines = score_lines(length, suites, scores) + [
        f"{task:<14}{count:>6}-shot  {metric:<24}{number:.4f}"
        for count, tasks in others.items() for task, metrics in tasks.items()
        for metric, number in metrics.items()
    ]  # fmt: skip
    return answer(args, value, lines)


def harness_manager(theirs: Sequence[str], include: Path | None) -> Any:
    if find_spec("lm_eval") is None:
        hint = nearest(theirs[0], list(SUITES)) or f"; built-in suites: {', '.join(SUITES)}"
        raise ConfigError([
            f"--tasks: unknown task {theirs[0]!r}{hint} (for tasks of lm-evaluation-harness: "
            "pip install 'foundation-transformers[eval]')"
        ])  # fmt: skip
    from magneto.hf.export import check_tasks, task_manager

    manager = task_manager(include)
    check_tasks(theirs, manager, list(SUITES))
    return manager
