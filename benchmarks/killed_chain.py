"""A run that is killed again and again, and goes on: the processes of `killed_ranks.py`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.counted_examples import ATTEMPT, FOLDER

BATCH, SAVE_EVERY = 8, 5
MODEL = {"width": 32, "layers": 2, "heads": 2, "ffn_width": 64, "vocab_size": 61}
# Of AdamW: biases of keys have no gradient but rounding, which a smaller one would blow up.
EPS = 1e-4
PATIENCE = 300.0  # seconds, after which a run that does not go on is a fault


@dataclass
class Chain:
    """One run that is killed again and again.

    Attributes:
        strategy: "ddp", "fsdp" or "hybrid".
        ranks: Of each attempt; all but the last are killed.
        restarts: How often torchrun starts a lost worker again.
        folder: Where it trains, and notes its examples.
        draw: Of the moments.
        seconds: From each kill to the first step after it.
        ending: Of these, until all processes of the attempt had ended, where torchrun gave it up.
    """

    strategy: str
    ranks: Sequence[int]
    restarts: int
    folder: Path
    draw: random.Random
    seconds: list[float] = field(default_factory=list)
    ending: list[float] = field(default_factory=list)

    @property
    def run(self) -> Path:
        """The run's directory."""
        return self.folder / "run"

    @property
    def output(self) -> Path:
        """What all attempts said."""
        return self.folder / "output.txt"

    @property
    def notes(self) -> Path:
        """Where the ranks note their examples."""
        return self.folder / "notes"


def write_recipe(path: Path, examples: int) -> None:
    """Write the recipe of one epoch."""
    training = {
        "steps": examples // BATCH, "batch_size": BATCH, "learning_rate": 1e-2, "log_every": 1,
        "save_every": SAVE_EVERY, "device": "cpu", "tensorboard": False, "warmup_steps": 3,
        "clip_norm": 1.0, "shard_size": 2, "eps": EPS,
    }  # fmt: skip
    recipe = {
        "task": "benchmarks.counted_examples:CountedExamples", "seed": 1, "model": MODEL,
        "data": {"examples": examples}, "training": training,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")


def start(chain: Chain, attempt: int, recipe: Path) -> subprocess.Popen[bytes]:
    """Start an attempt: by torchrun, or alone."""
    ranks, words = chain.ranks[attempt], [sys.executable]
    if ranks > 1 or chain.restarts:
        words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        words += ["--max-restarts", str(chain.restarts)]
    words += ["-m", "magneto", "train", str(recipe), "--out", str(chain.run), "--auto-resume"]
    words += ["--distributed", chain.strategy if ranks > 1 else "none"]
    chain.notes.mkdir(parents=True, exist_ok=True)
    paths = [str(Path.cwd() / "src"), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    more = {FOLDER: str(chain.notes), ATTEMPT: str(attempt), "PYTHONPATH": os.pathsep.join(paths)}
    with chain.output.open("ab") as output:
        return subprocess.Popen(
            words, env={**os.environ, "OMP_NUM_THREADS": "1", **more}, stdout=output, stderr=output
        )


def notes_of(chain: Chain, attempt: str) -> dict[Path, list[list[int]]]:
    """Return what each process of an attempt noted: its examples, step by step."""
    return {
        path: [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
        for path in sorted(chain.notes.glob(f"{attempt}-*"))
    }


def wait_for(what: Callable[[], bool], chain: Chain, child: subprocess.Popen[bytes]) -> None:
    """Wait until something is so.

    Raises:
        RuntimeError: If the child ends before, or nothing comes of it; has its last words.
    """
    end = time.monotonic() + PATIENCE
    while not what():
        if child.poll() is not None or time.monotonic() > end:
            said = "\n".join(chain.output.read_text(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"{child.args} ended with {child.poll()}, or hangs:\n{said}")
        time.sleep(0.01)


def kill_one(chain: Chain, attempt: str, child: subprocess.Popen[bytes]) -> float:
    """Kill one rank at a random moment of a random step; return when that was."""
    wanted = chain.draw.randrange(3, 16)

    def reached() -> bool:
        found = notes_of(chain, attempt)
        return any(len(steps) >= wanted for steps in found.values())

    wait_for(reached, chain, child)
    time.sleep(chain.draw.uniform(0, 0.1))
    processes = sorted(notes_of(chain, attempt))
    process = int(chain.draw.choice(processes).name.rpartition("-")[2])
    os.kill(process, signal.SIGKILL)
    return time.monotonic()


def go_through(chain: Chain, recipe: Path) -> None:
    """Train, kill and go on until the run is at its end."""
    phases = [(a, r) for a in range(len(chain.ranks)) for r in range(chain.restarts + 1)]
    child, killed = start(chain, 0, recipe), 0.0
    for attempt, restart in phases:
        name = f"{attempt}.{restart}"
        if attempt and not restart:
            child.wait(PATIENCE)
            chain.ending.append(time.monotonic() - killed)
            child = start(chain, attempt, recipe)
        wait_for(lambda name=name: any(notes_of(chain, name).values()), chain, child)
        if killed:
            chain.seconds.append(time.monotonic() - killed)
        if (attempt, restart) != phases[-1]:
            killed = kill_one(chain, name, child)
    if child.wait(PATIENCE):
        raise RuntimeError(f"the last attempt ended with {child.returncode}: {chain.output}")
