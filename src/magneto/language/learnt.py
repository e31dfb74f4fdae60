"""Has a pre-trained encoder learnt anything? Its loss beside that of guessing by frequency."""

from __future__ import annotations

from pathlib import Path

from magneto.files import read_json

# In a run of masked language modelling: the metrics of guessing tokens by their frequencies.
PLATEAU_FILE = "baseline.json"
# Validation batches that these are of.
PLATEAU_BATCHES = 20
# A loss above this share of the plateau's is at the plateau: its place differs by a few hundredths
# with the batches that it is measured on.
AT_PLATEAU = 0.97


def learnt_nothing(run: Path) -> str:
    """Say that a run's encoder has learnt nothing, or "" if it has, or nothing is known of it."""
    try:
        plateau = read_json(run / PLATEAU_FILE)["loss"]
        loss = read_json(run / "result.json")["metrics"]["loss"]
    except (OSError, ValueError, KeyError):
        return ""  # another kind of run, or one that has not ended
    if loss < AT_PLATEAU * plateau:
        return ""
    return (
        f"warning: the encoder of {run} has learnt nothing but how frequent tokens are: its "
        f"validation loss is {loss:.3g}, and {plateau:.3g} is had without a look at the text; "
        "train it longer, or at another learning rate, before it is fine-tuned"
    )
