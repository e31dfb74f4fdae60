"""The command line: finds the command, parses its words, turns a user's mistake into one line.

Nothing heavy is imported here: `magneto --help` needs neither torch nor a command's module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from magneto.mistakes import user_lines

# Name: (module with `main(words)` and `parser()`, or, after a colon, its function with
# FUNCTION_parser; one line for --help).
COMMANDS = {
    "start": ("magneto.commands.start", "look at data; which recipe fits, and what is easy there"),
    "train": ("magneto.commands.train", "train a recipe, or go on with a run"),
    "evaluate": ("magneto.commands.evaluate", "measure a run's model on its validation data"),
    "report": ("magneto.commands.report", "a run as a page: curves, and what its model does"),
    "compare": ("magneto.commands.compare", "which placement, at which learning rate, and why"),
    "ladder": ("magneto.commands.ladder", "which placement and rate a larger size will want"),
    "table": ("magneto.commands.table", "placements side by side; the paper's tables"),
    "plan": ("magneto.commands.plan", "memory and hours on so many GPUs, before"),
    "probe": ("magneto.commands.probe", "will this recipe train: theory, layers, a verdict"),
    "generate": ("magneto.commands.predict:generate", "let a language model continue a prompt"),
    "translate": ("magneto.commands.translate", "translate lines with a translation model"),
    "transcribe": ("magneto.commands.transcribe", "write down what is said in recordings"),
    "predict": ("magneto.commands.predict", "what a model says of your images, texts or rows"),
    "search": ("magneto.commands.search", "images by a text, or texts by an image"),
    "bound": ("magneto.commands.bound", "what the theory bounds, for a placement and a depth"),
    "tokenizer": ("magneto.commands.tokenizer", "train a tokenizer on text of your own"),
    "recipes": ("magneto.commands.recipes", "list the recipes, or print one"),
    "export": ("magneto.commands.convert:export", "write a run's model in Hugging Face's format"),
    "convert": ("magneto.commands.convert", "other people's weights as ours, and ours as theirs"),
}

# What commands are called elsewhere.
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

`magneto COMMAND --help` explains one. To begin:

  magneto train causal-lm/tiny --out runs/first
  magneto generate runs/first "A function that"
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code.

    0; 2 for a user's mistake; 3 for a run that diverged; 130 for Ctrl-C.
    """
    # Threads that wait must not spin: on busy cores that made steps ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    open_missing_streams()
    print_everything()
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help", "help"):
        lines = (f"  {name:<16}{what}" for name, (_, what) in COMMANDS.items())
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
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        say(f"no command {name!r}; {hint}")
        return 2
    module, _, function = COMMANDS[name][0].partition(":")
    return guarded(lambda: getattr(import_module(module), function or "main")(rest))


def command_parser(name: str) -> Any:
    """Return the parser of a command's words, a `magneto.commands.shared.Parser`."""
    module, _, function = COMMANDS[name][0].partition(":")
    return getattr(import_module(module), f"{function}_parser" if function else "parser")()


def guarded(run: Callable[[], int | None]) -> int:
    """Run a command; print a user's mistake as lines without a traceback."""
    try:
        code = run() or 0
        flush_output()  # a full disk is known here, not at the interpreter's end
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
            drop_output()  # it is what could not be written
        return 2


def say(line: str) -> None:
    """Print a line of our own on stderr; where that is closed, the exit code says enough."""
    with suppress(OSError, ValueError):
        print(f"magneto: {line}", file=sys.stderr)


def print_everything() -> None:
    """Print what an encoding has no sign for as an escape, on stdout as Python does on stderr.

    A text or the name of a file must not end a command in the middle of its output.
    """
    with suppress(AttributeError):  # closed, or in place of it something of another kind
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def flush_output() -> None:
    """Write what is still to be written on stdout, unless that is closed."""
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """Let what is still to be written on stdout vanish, since nobody can read it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_missing_streams() -> None:
    """Put the null device in the place of standard streams that are closed (`2>&-`).

    Else the next file that is opened gets the number, and what is printed is written into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass  # a lower one is free too
    if sys.stderr is None:  # else what is printed there would go to stdout
        sys.stderr = open(2, "w", closefd=False, encoding="utf-8")  # noqa: SIM115
