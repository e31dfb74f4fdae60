"""The edge to the Hugging Face ecosystem. Nothing of it is imported before it is used.

`register()` makes AutoConfig and AutoModelForCausalLM know our models; loading anything through
this package calls it. `import magneto.hf` followed by `magneto.hf.register()` is all that
`AutoModelForCausalLM.from_pretrained(DIR)` needs for an exported DIR.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magneto.hf.configuration import MagnetoConfig
    from magneto.hf.conversion import from_torch, load
    from magneto.hf.generation import Sampling, generate
    from magneto.hf.modeling import MagnetoForCausalLM
    from magneto.hf.registration import register
    from magneto.hf.saving import export

__all__ = [
    "MagnetoConfig",
    "MagnetoForCausalLM",
    "Sampling",
    "export",
    "from_torch",
    "generate",
    "load",
    "register",
]

_HOME = {
    "MagnetoConfig": "configuration",
    "MagnetoForCausalLM": "modeling",
    "Sampling": "generation",
    "export": "saving",
    "from_torch": "conversion",
    "generate": "generation",
    "load": "conversion",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    """Import a name from its home the first time it is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'magneto.hf' has no attribute {name!r}")
    try:
        return getattr(import_module(f"magneto.hf.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("magneto"):
            raise
        message = f"magneto.hf needs {error.name}: pip install 'foundation-transformers[hf]'"
        raise ModuleNotFoundError(message, name=error.name) from error
