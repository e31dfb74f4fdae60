"""Training examples that were left out: said once, and kept in the run by name."""

from __future__ import annotations

from contextlib import suppress

from magneto.files import Damaged, read_object, write_json
from magneto.training.distributed import gather_lists
from magneto.training.state import TrainingState

LEFT_OUT_FILE = "excluded.json"
"""In a run: why which training example was left out, by its name."""
# Names of a line.
NAMED = 32


def record_left_out(state: TrainingState) -> None:
    """Add what all ranks left out to the run's file, and say what is new; every rank calls this.

    What an earlier process of the run wrote stays, and is not said again.
    """
    mine = state.task.left_out()
    if mine is None:
        return
    found = dict(gather_lists(list(mine.items()), state.world))
    if not state.world.is_main_process:
        return
    path, held = state.run / LEFT_OUT_FILE, {}
    with suppress(OSError, Damaged):  # what was lost is found again
        held = read_object(path)
    new = {name: why for name, why in found.items() if name not in held}
    if new or not held:
        write_json(path, {**held, **new})
    for why in dict.fromkeys(new.values()):
        names = [name for name in new if new[name] == why]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        state.report.say(f"left out of training: {', '.join(names[:NAMED])}{more} ({why})")
