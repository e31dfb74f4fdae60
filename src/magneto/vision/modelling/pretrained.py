"""The encoder of a run of masked image modelling, to begin another model of images with."""

from __future__ import annotations

from pathlib import Path

from magneto.weights import StoredTensor, find_weights, open_tensors

PREFIXES = ("embedding.", "class_token.", "encoder.")


def encoder_weights(run: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a run's encoder, by the names that an `ImageClassifier` has for them.

    The patches' embedding, the class token if there is one, and the stack with its last norm,
    `encoder.final_norm`, which a classifier of pooling "mean_then_norm" calls `pooled_norm` and,
    as BEiT does, begins afresh. Not the mask's vector, not the head.

    Args:
        run: The run's directory. Its best weights are taken, else its final or last ones.

    Raises:
        FileNotFoundError: If the run has no weights.
        ValueError: If they are damaged, or it is no run of masked image modelling.
    """
    stored = open_tensors(find_weights(run))
    if "mask_token.vector" not in stored:
        raise ValueError(f"{run} has no masked image model: give an image-modelling run")
    return {name: tensor for name, tensor in stored.items() if name.startswith(PREFIXES)}
