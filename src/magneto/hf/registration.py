"""Make transformers' Auto classes know ours."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from magneto.hf.configuration import MagnetoConfig
from magneto.hf.modeling import MagnetoForCausalLM


def register() -> None:
    """Register our classes with AutoConfig and AutoModelForCausalLM; may be called again."""
    AutoConfig.register(MagnetoConfig.model_type, MagnetoConfig, exist_ok=True)
    AutoModelForCausalLM.register(MagnetoConfig, MagnetoForCausalLM, exist_ok=True)
