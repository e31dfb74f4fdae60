"""What all our transformers models share: no initialisation of theirs, and their switches.

All arithmetic is the core's. `_init_weights` does nothing, since a core is initialised already, and
transformers' own initialisation would erase the placement's gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from magneto.hf.attention import use_attention
from magneto.hf.configuration import MagnetoConfig
from magneto.nn.transformer import LayerStack


class MagnetoPreTrainedModel(PreTrainedModel):
    """A core of ours in `self.core`, maybe with a head beside it."""

    config_class = MagnetoConfig
    base_model_prefix = "core"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def ready(self) -> None:
        """Finish construction: tied weights, the attention asked for."""
        self.post_init()
        self._use_attention()

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the core's initialisation alone."""

    def set_attn_implementation(
        self, attn_implementation: str | dict[str, str], allow_all_kernels: bool = False
    ) -> None:
        """Compute attention by "sdpa" or "eager" from now on."""
        super().set_attn_implementation(attn_implementation, allow_all_kernels)
        self._use_attention()

    def _use_attention(self) -> None:
        use_attention(self, self.config._attn_implementation or "sdpa")

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """Recompute each layer in the backward pass, or no longer.

        It is the stacks' own recomputation, never reentrant, whatever function is given.

        Raises:
            ValueError: If only some of the layers are to be recomputed.
        """
        if every_n_layers != 1:
            raise ValueError(f"every_n_layers={every_n_layers}: all layers or none, here")
        for stack in self._stacks():
            stack.config = replace(stack.config, checkpoint_activations=enable)

    @property
    def is_activation_checkpointing(self) -> bool:
        """Whether layers are recomputed in the backward pass."""
        return any(stack.config.checkpoint_activations for stack in self._stacks())

    @property
    def is_gradient_checkpointing(self) -> bool:
        """The same, by its older name."""
        return self.is_activation_checkpointing

    def _stacks(self) -> Iterator[LayerStack]:
        return (module for module in self.modules() if isinstance(module, LayerStack))

    def wants_hidden_states(self, others: Mapping[str, Any]) -> bool:
        """Whether the call, or else the configuration, asks for hidden states."""
        asked = others.get("output_hidden_states")
        return bool(self.config.output_hidden_states if asked is None else asked)


@contextmanager
def hidden_states(stack: LayerStack, wanted: bool) -> Iterator[list[Tensor]]:
    """Collect what goes into each layer, and last what comes out of the stack, normed.

    Yields:
        A list that fills while the stack runs: layers + 1 tensors (batch, length, width); it stays
        empty if they are not wanted.
    """
    found: list[Tensor] = []
    if not wanted:
        yield found
        return

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found.append(inputs[0])

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        found.append(output)

    handles = [layer.register_forward_pre_hook(before) for layer in stack.layers]
    handles.append(stack.register_forward_hook(after))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def refuse(others: Mapping[str, Any], *names: str) -> None:
    """Raise ValueError if one of these arguments is given."""
    for name in names:
        if others.get(name) is not None:
            raise ValueError(f"{name} cannot be given: positions are counted from attention_mask, "
                             "and embeddings are the core's own")  # fmt: skip
    if others.get("output_attentions"):
        raise ValueError("output_attentions cannot be given: attention shares are not kept")


def as_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Return transformers' mask of ones and zeros as a boolean one."""
    return None if attention_mask is None else attention_mask.bool()


def divided(total: Tensor, count: Tensor, wanted: Tensor | int | None) -> Tensor:
    """Return a mean loss: a sum over what it counts, or over the number that Trainer gives."""
    number = torch.as_tensor(count if wanted is None else wanted, device=total.device)
    return total / number.clamp(min=1)
