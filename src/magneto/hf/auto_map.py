"""What an exported directory brings along, so that transformers loads it without `register()`.

`from_pretrained(DIR, trust_remote_code=True)` of an Auto class looks into the directory's
`auto_map`, and finds our classes in a module of a few lines beside the weights: it takes them from
the installed package.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

MODULE = "magneto_classes"
MODULE_SOURCE = '''"""The classes of this directory; the package magneto has them."""

try:
    from magneto import hf
except ModuleNotFoundError as error:
    if error.name != "magneto":
        raise
    message = "this model needs magneto: pip install 'foundation-transformers[hf]'"
    raise ModuleNotFoundError(message, name=error.name) from error


def __getattr__(name):
    return getattr(hf, name)
'''


def auto_map(classes: dict[str, str]) -> dict[str, str]:
    """Return an `auto_map`: the Auto classes, and which of our classes each loads."""
    return {auto: f"{MODULE}.{name}" for auto, name in classes.items()}


def write_module(directory: str | os.PathLike[str]) -> None:
    """Write the module that an `auto_map` names."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    Path(directory, f"{MODULE}.py").write_text(MODULE_SOURCE, encoding="utf-8")


class WithoutCopies:
    """A class whose source transformers need not copy into a directory: the package has it."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing; transformers calls it of every class that an `auto_map` named."""


class SavedWithModule(WithoutCopies):
    """One whose file in a directory has an `auto_map`, so that the module belongs beside it."""

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any
    ) -> Any:
        """Write the object's own files, and the module that their `auto_map` names."""
        write_module(save_directory)
        return super().save_pretrained(save_directory, push_to_hub, **kwargs)  # type: ignore[misc]
