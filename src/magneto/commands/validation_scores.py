"""What `magneto evaluate` does for most runs: the metrics of the validation data."""

from __future__ import annotations

import argparse
from typing import Any

from magneto.commands.arguments import print_json
from magneto.progress import ProgressBars
from magneto.runs import load_run, run_task


def evaluate(given: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Run `magneto evaluate RUN`."""
    if given.data:
        overrides = {**run_task(given.run, overrides).other_data(given.data), **overrides}
    report = ProgressBars()
    opened = load_run(given.run, given.weights, overrides)
    metrics = opened.evaluate(given.limit, report)
    report.finish()
    if given.json:
        print_json({"run": str(given.run), "weights": str(opened.weights), **metrics})
    else:
        print(f"{opened.weights}:")
        width = max(16, *(len(name) + 1 for name in metrics))
        for name, value in metrics.items():
            print(f"  {name:<{width}}{value:.4f}")
    return 0
