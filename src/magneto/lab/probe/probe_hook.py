"""The probe as a hook of training: every so many steps, what each layer did, in probe.jsonl."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict

import torch

from magneto.files import plain
from magneto.lab.probe.levels import PERIOD
from magneto.lab.probe.probe import LayerReading, Probe, first_trouble
from magneto.training.hooks import Hook
from magneto.training.metrics_logger import cut_after
from magneto.training.schedule import learning_rate
from magneto.training.sharding import unwrap
from magneto.training.state import TrainingState

PROBE_FILE = "probe.jsonl"


class ProbeHook:
    """Watches every `period`-th step of a run. Give `hooks=[ProbeHook().hook]` to `train`.

    The model is hooked just before a watched step and is left alone in all others. A row of
    probe.jsonl holds the step, its learning rate and the readings of every layer; a layer that is
    not finite, or past half of the range of the precision trained in, is said at once. Steps beyond
    the checkpoint that a run is resumed from are cut away, as in its metrics.
    """

    def __init__(self, period: int = PERIOD) -> None:
        """Take the period, in steps.

        Raises:
            ValueError: If it is below 2: a step is hooked from the one before.
        """
        if period < 2:
            raise ValueError(f"a probe's period must be 2 steps or more, not {period}")
        self.period = period
        self.probe: Probe | None = None
        self.hooked = ExitStack()
        self.watching = False
        self.said: set[str] = set()

    @property
    def hook(self) -> Hook:
        """The hook to give to `train`; all but the watched steps cost one comparison."""
        return Hook(1, self)

    def __call__(self, state: TrainingState) -> None:
        """Read the step that was watched, and hook the model if the next one is to be."""
        if self.probe is None:
            self.probe = Probe(unwrap(state.model))
            path = state.run / PROBE_FILE
            if state.world.is_main_process and path.exists():
                cut_after(path, state.step - 1)
        if self.watching:
            self.hooked.close()
            self.watching = False
            self._write(state, self.probe.read())
        if (state.step + 1) % self.period == 0 and state.step < state.config.steps:
            self.watching = True
            self._begin(state, self.probe)

    def _begin(self, state: TrainingState, probe: Probe) -> None:
        """Hook the layers, and the optimizer before its step, until the step is taken."""
        if state.config.compile:  # compiled code does not see hooks set after it was made
            torch.compiler.set_stance("force_eager")
            self.hooked.callback(torch.compiler.set_stance, "default")
        mark = state.optimizer.register_step_pre_hook(lambda *rest: probe.mark())
        for handle in (mark, *probe.hook()):
            self.hooked.callback(handle.remove)

    def _write(self, state: TrainingState, layers: list[LayerReading]) -> None:
        """Add a row; say a new trouble."""
        if not state.world.is_main_process:
            return
        row = {
            "step": state.step,
            "learning_rate": learning_rate(state.config, state.step - 1),
            "layers": [asdict(layer) for layer in layers],
        }
        with (state.run / PROBE_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row)) + "\n")
        trouble = first_trouble(layers, "bf16" if state.config.precision == "bf16" else "fp16")
        if trouble and trouble.layer not in self.said:
            self.said.add(trouble.layer)
            state.report.say(f"step {state.step}: {trouble.layer}: {trouble.reason}")
