"""The text encoder of a run, to begin another model with."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from magneto.files import user_path
from magneto.language.config import TextEncoderConfig
from magneto.language.text_encoder import TextEncoder
from magneto.runs import open_run
from magneto.weights import StoredTensor, find_weights, open_tensors

PREFIX = "text_encoder."
# What another run may choose anew: it changes no tensor and nothing that the weights compute.
FREE = {
    *("dropout", "attention_dropout", "activation_dropout", "drop_path", "init"),
    *("residual_dtype", "checkpoint_activations"),
}


def pretrained_run(config: Any) -> Path:
    """Return the directory that a configuration's `pretrained` names."""
    return user_path(config.pretrained.replace("{placement}", config.row.name))


def check_pretrained(config: Any) -> None:
    """See that a pre-trained run is there and has the encoder that a configuration describes.

    Raises:
        FileNotFoundError: If there is no such run; names the nearest one.
        ValueError: If its encoder has another shape; names the options that give it that shape.
    """
    run = pretrained_run(config)
    held = open_run(run).model
    different = [
        f"--model.{field.name} {_word(getattr(held, field.name))}"
        for field in fields(TextEncoderConfig)
        if field.name not in FREE
        and hasattr(held, field.name)
        and _word(getattr(held, field.name)) != _word(getattr(config, field.name))
    ]
    if different:
        raise ValueError(f"{run} has an encoder of another shape: give {' '.join(different)}")
    find_weights(run)


def pretrained_weights(encoder: TextEncoder, run: Path) -> dict[str, StoredTensor]:
    """Return the encoder's tensors in a run's best, final or last weights, by their names there.

    Args:
        encoder: That shall have them; its shapes are looked at, not its values.
        run: The run's directory.

    Raises:
        FileNotFoundError: If the run has no weights.
        ValueError: If they are damaged, or it has no text encoder, or one of another shape.
    """
    stored = open_tensors(find_weights(run))
    tensors = {name: tensor for name, tensor in stored.items() if name.startswith(PREFIX)}
    if not tensors:
        raise ValueError(f"{run} has no text encoder: give a masked-lm run")
    wanted = {f"{PREFIX}{name}": tensor for name, tensor in encoder.state_dict().items()}
    for name in sorted(wanted.keys() | tensors.keys()):
        there, here = (tuple(t[name].shape) if name in t else "none" for t in (tensors, wanted))
        if there != here:
            name = name.removeprefix(PREFIX)
            raise ValueError(f"{run} has another encoder: {name} is {there}, the model has {here}")
    return tensors


def _word(value: Any) -> str:
    """Write a value as the command line takes it; a recipe's lists are a configuration's tuples."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
