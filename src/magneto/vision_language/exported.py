"""A folder that `magneto export` or `magneto convert` wrote, read without transformers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from magneto.data.tokenizer import load_tokenizer
from magneto.files import read_json, read_object
from magneto.vision_language.config import VisionLanguageConfig
from magneto.weights import StoredTensor, open_tensors

CONFIG, PICTURES = "config.json", "preprocessor_config.json"
# Of all tensors' names, and of those of an encoder that has no head.
CORE, ENCODER = "core.", "encoder."
EMBEDDING = "vision_embedding."


def is_exported(folder: Path) -> bool:
    """Return whether a folder is an exported or a converted model, not a run."""
    return (folder / CONFIG).is_file() and not (folder / "recipe.yaml").is_file()


def exported_config(folder: Path) -> VisionLanguageConfig:
    """Return the configuration of the folder's encoder.

    Raises:
        ValueError: If it is no model of vision and language.
    """
    core: Any = read_object(folder / CONFIG).get("core")
    names = {field.name for field in fields(VisionLanguageConfig)}
    if not isinstance(core, dict) or not {"experts", "image_size"} <= core.keys():
        raise ValueError(f"{folder} is no model of vision and language")
    return VisionLanguageConfig(**{name: core[name] for name in names & core.keys()})


def exported_normalisation(folder: Path) -> str:
    """Return the normalisation of the images that the model reads.

    Raises:
        FileNotFoundError: If the folder does not tell.
    """
    path = folder / PICTURES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {PICTURES}, which tells how it reads images")
    return str(read_json(path)["normalisation"])


def exported_tokenizer(folder: Path) -> str:
    """Return the folder as what `load_tokenizer` reads.

    Raises:
        FileNotFoundError: If it has no tokenizer.
    """
    try:
        load_tokenizer(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} has no tokenizer: convert the weights again with "
                                "--tokenizer beit3.spm") from error  # fmt: skip
    return str(folder)


def exported_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the model's tensors by our names, the encoder's with its prefix; none is read yet."""
    found = {name.removeprefix(CORE): t for name, t in open_tensors(folder).items()}
    bare = any(name.startswith(EMBEDDING) for name in found)
    return {f"{ENCODER}{name}": t for name, t in found.items()} if bare else found
