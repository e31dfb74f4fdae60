"""The command line `magneto`.

Torch and the commands are imported only when needed, so `magneto --help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

from magneto.mistakes import user_lines

# For each command, the line for --help. The module `magneto.commands.COMMAND` has `main(words)` and
# `parser()`.
COMMANDS = {
    "start": "suggest a recipe for your data, with simple baselines",
    "train": "train a recipe, or resume a run",
    "evaluate": "measure a run's model on its validation data",
    "report": "write a run's report: curves and sample predictions",
    "compare": "compare norm placements over learning rates and seeds",
    "ladder": "forecast the best placement and learning rate for a larger model",
    "table": "tabulate the scores of several runs",
    "plan": "estimate memory and hours on N GPUs before training",
    "probe": "predict from a few steps whether a recipe will train",
    "generate": "continue a prompt, or caption images",
    "translate": "translate lines of text",
    "transcribe": "transcribe recordings",
    "predict": "label images, texts or rows of a table",
    "search": "search images by text, or texts by image",
    "bound": "compute a theoretical bound on the first model update",
    "tokenizer": "train a tokenizer on your own text",
    "recipes": "list the recipes, or print one",
    "export": "export a run's model to Hugging Face transformers",
    "convert": "convert weights from or to other libraries",
}
# Commands in the module of another command, which has `COMMAND(words)` and `COMMAND_parser()`.
SHARED_MODULES = {"generate": "predict", "export": "convert"}

# Names of commands in other libraries.
ELSEWHERE = {
    "eval": "evaluate", "test": "evaluate", "validate": "evaluate", "infer": "predict",
    "inference": "predict", "classify": "predict", "sample": "generate", "finetune": "train",
    "fine-tune": "train", "fit": "train", "resume": "train", "list": "recipes", "sweep": "compare",
}  # fmt: skip
USAGE = """usage: magneto COMMAND ...

One Transformer for every modality, and the lab that says
which norm placement trains, at which rate, and why.

commands:
{commands}

`magneto COMMAND --help` describes one command. To begin:

  magneto train causal-lm/tiny --out runs/first
  magneto generate runs/first "A function that"
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The exit code is 0 for success, 3 for a diverged run, and 130 for Ctrl-C. It is 2 for a user's
    mistake, and for too little memory or disk space.
    """
    # Threads that wait must not spin: on busy cores that made steps ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    open_missing_streams()
    print_everything()
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help", "help"):
        lines = (f"  {name:<16}{what}" for name, what in COMMANDS.items())
        print(USAGE.format(commands="\n".join(lines)), end="")
        return 0 if words else 2
    name, *rest = words
    if name in ("--version", "-V"):
        from magneto import __version__

        print(f"magneto {__version__}")
        return 0
    if name not in COMMANDS:
        close = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        near = [ELSEWHERE[name]] if name in ELSEWHERE else close
        hint = f"did you mean {near[0]}?" if near else f"commands: {', '.join(COMMANDS)}"
        say(f"unknown command {name!r}; {hint}")
        return 2
    function = name if name in SHARED_MODULES else "main"
    return guarded(lambda: getattr(command_module(name), function)(rest))


def command_module(name: str) -> ModuleType:
    return import_module(f"magneto.commands.{SHARED_MODULES.get(name, name)}")


def command_parser(name: str) -> Any:
    return getattr(command_module(name), f"{name}_parser" if name in SHARED_MODULES else "parser")()


def guarded(run: Callable[[], int | None]) -> int:
    """Run a command, and print a user's mistake without a traceback."""
    try:
        code = run() or 0
        flush_output()  # so that a full disk is reported here, not at the interpreter's exit
        return code
    except KeyboardInterrupt:
        say("stopped")
        return 130
    except BrokenPipeError:
        drop_output()
        return 0
    except Exception as error:
        lines = user_lines(error)
        if os.environ.get("MAGNETO_TRACEBACK") or not lines:
            raise
        for line in lines:
            say(line)
        try:
            flush_output()
        except (OSError, ValueError):
            drop_output()  # this output caused the error
        return 2


def say(line: str) -> None:
    # stderr may be closed.
    with suppress(OSError, ValueError):
        print(f"magneto: {line}", file=sys.stderr)


def print_everything() -> None:
    # Characters that stdout's encoding lacks become escapes, as Python does on stderr.
    with suppress(AttributeError):  # stdout is closed or replaced
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def flush_output() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    # What stdout still buffers is discarded, since nobody can read it.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_missing_streams() -> None:
    # Otherwise the next opened file would get the descriptor of a closed stream (`2>&-`).
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass  # a lower number is free too
    if sys.stderr is None:  # otherwise errors would be printed on stdout
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
