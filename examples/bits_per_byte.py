"""Set a trained language model beside simple ones, in bits per byte of the same validation text.

python examples/bits_per_byte.py runs/first
"""

import sys
from pathlib import Path
from typing import Any

from magneto.language.baselines import text_baselines
from magneto.runs import load_run


def main(run: Path) -> dict[str, float]:
    """Return bits per byte of the run's best model and of the baselines, by name."""
    opened: Any = load_run(run, "best", {"training.device": "cpu"})
    task, metrics = opened.task, opened.evaluate().metrics
    baselines = text_baselines(task.documents("train"), task.documents("validation"))
    return {"this model": metrics["bits_per_byte"], **baselines}


def show(bits: dict[str, float]) -> None:
    """Print the table, and whether the model is the best of it."""
    print("\nbits per byte of the validation text (less is better)")
    for name, value in bits.items():
        print(f"  {name:<32}{value:.3f}")
    better = [name for name, value in bits.items() if value < bits["this model"]]
    print(f"better than this model: {', '.join(better) or 'none'}\n")


if __name__ == "__main__":
    show(main(Path(sys.argv[1])))
