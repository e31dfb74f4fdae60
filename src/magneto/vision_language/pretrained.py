"""The encoder of another run of vision and language, to begin a model with.

In a run's place there may be a folder that `magneto export` or `magneto convert` wrote.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from magneto.data.problems import listed
from magneto.data.tokenizer import load_tokenizer
from magneto.files import read_json, read_object
from magneto.nn.config import MultiwayConfig
from magneto.runs import check_same_encoder, open_run, pretrained_run, run_tokenizer
from magneto.vision_language.config import FineTunedConfig, VisionLanguageConfig
from magneto.vision_language.model import interpolate_positions
from magneto.weights import StoredTensor, find_weights, in_memory, open_tensors

PREFIX = "encoder."
# A folder that `magneto export` or `magneto convert` wrote, read without transformers.
CONFIG, PICTURES = "config.json", "preprocessor_config.json"
# Begins all tensors' names; an encoder without a head has one that begins so.
CORE = "core."
EMBEDDING = "vision_embedding."
WANTED = "give a run of vision-language-modelling, or of what was fine-tuned from one"
# Names of tensors that a message lists.
LISTED = 8
# What the weights compute depends on: the same in both runs.
SAME = {
    *(field.name for field in fields(MultiwayConfig)),
    *("patch_size", "channels", "embedding_scale"),
} - {"max_length"}


@dataclass(frozen=True)
class Pretrained:
    """What another run gives to a model.

    Attributes:
        run: Its directory.
        weights: By the model's names, positions interpolated.
        missing: Tensors of the model that it does not have; they are drawn.
        unused: Tensors of the run that the model does not have.
    """

    run: Path
    weights: dict[str, StoredTensor]
    missing: list[str]
    unused: list[str]

    def describe(self) -> str:
        """Say what is taken, what is drawn anew and what is left."""
        missing, unused = (listed(n, LISTED) or "nothing" for n in (self.missing, self.unused))
        return (f"{self.run}: {len(self.weights)} tensors taken; drawn anew: {missing}; "
                f"left: {unused}")  # fmt: skip


def pretrained_reading(config: FineTunedConfig) -> tuple[str, str]:
    """Return how the run that `pretrained` names reads texts and images.

    It is the directory of its tokenizer, and one of `magneto.vision.transforms.NORMALISATIONS`.

    Raises:
        FileNotFoundError: If there is no such run, or it has lost its tokenizer.
        ValueError: If it is no run of vision and language.
    """
    run = pretrained_run(config)
    if not is_exported(run):
        held_config(run)
        return run_tokenizer(run), open_run(run).data.normalisation
    try:
        load_tokenizer(run)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{run} has no tokenizer: convert the weights again with "
                                "--tokenizer beit3.spm") from error  # fmt: skip
    if not (run / PICTURES).is_file():
        raise FileNotFoundError(f"{run} has no {PICTURES}, which tells how it reads images")
    return str(run), str(read_json(run / PICTURES)["normalisation"])


def load_pretrained(model: nn.Module, config: FineTunedConfig) -> Pretrained:
    """Find the weights of the encoder of the run that `pretrained` names.

    The model that shall have them has a `VisionLanguageEncoder` called `encoder`; its shapes are
    looked at, not its values, so it may be on torch's "meta" device.

    Raises:
        FileNotFoundError: If there is no such run, or it has no weights.
        ValueError: If its encoder is another one; names the options that would fit.
    """
    run = pretrained_run(config)
    held = held_config(run)
    check_same_encoder(run, held, config, SAME)
    stored = exported_tensors(run) if is_exported(run) else open_tensors(find_weights(run))
    there = model.state_dict()
    state = {name: stored[name].read() for name in there
             if name.startswith(PREFIX) and name in stored}  # fmt: skip
    if not state:
        raise ValueError(f"{run} has no tensor called {PREFIX}...: {WANTED}")
    try:
        state = interpolate_positions(state, held, config)
    except ValueError as error:
        raise ValueError(f"{run}: {error}") from error
    for name, tensor in state.items():
        if tensor.shape != there[name].shape:
            raise ValueError(f"{run} has another encoder: {name} is {tuple(tensor.shape)}, the "
                             f"model has {tuple(there[name].shape)}")  # fmt: skip
    missing = [name for name in there if name not in state]
    weights = {name: in_memory(name, tensor) for name, tensor in state.items()}
    return Pretrained(run, weights, missing, sorted(stored.keys() - state.keys()))


def is_exported(folder: Path) -> bool:
    """Return whether a folder is an exported or a converted model, not a run."""
    return (folder / CONFIG).is_file() and not (folder / "recipe.yaml").is_file()


def held_config(run: Path) -> Any:
    """Return the configuration of a run's model, or of an exported one's encoder.

    Raises:
        ValueError: If it is not of vision and language.
    """
    if not is_exported(run):
        held = open_run(run).model
        if getattr(held, "image_grid", None) is None:
            raise ValueError(f"{run} is no run of vision and language: {WANTED}")
        return held
    core: Any = read_object(run / CONFIG).get("core")
    names = {field.name for field in fields(VisionLanguageConfig)}
    if not isinstance(core, dict) or not {"experts", "image_size"} <= core.keys():
        raise ValueError(f"{run} is no model of vision and language")
    return VisionLanguageConfig(**{name: core[name] for name in names & core.keys()})


def exported_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the model's tensors by our names, the encoder's with its prefix; none is read yet."""
    found = {name.removeprefix(CORE): t for name, t in open_tensors(folder).items()}
    bare = any(name.startswith(EMBEDDING) for name in found)
    return {f"{PREFIX}{name}": t for name, t in found.items()} if bare else found
