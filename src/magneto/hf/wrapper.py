"""What all our transformers models share: our initialisation, and their switches.

All arithmetic is the core's. A core is initialised when it is built, and transformers' own
initialisation would erase the placement's gains: `_init_weights` draws only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationMixin, PreTrainedModel

from magneto.hf.auto_map import WithoutCopies
from magneto.hf.configuration import MagnetoConfig
from magneto.nn.transformer import LayerStack

_POSITIONS = "positions are counted from attention_mask"
_EMBEDDINGS = "embeddings are the core's own"
_PACKED = "texts in one row are told apart by an attention_mask (batch, length, length)"
_HEADS = "no head can be left out"
REFUSED = {
    "position_ids": _POSITIONS,
    "decoder_position_ids": _POSITIONS,
    "inputs_embeds": _EMBEDDINGS,
    "decoder_inputs_embeds": _EMBEDDINGS,
    "head_mask": _HEADS,
    "decoder_head_mask": _HEADS,
    "cross_attn_head_mask": _HEADS,
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
    "seq_idx": _PACKED,
    "encoder_hidden_states": "there is no such memory here",
    "shift_labels": "only a causal model's labels are shifted",
}
"""Arguments of transformers' models that change what they compute and have no place here: why."""


class MagnetoPreTrainedModel(WithoutCopies, PreTrainedModel):
    """A core of ours in `self.core`, maybe with a head beside it."""

    config_class = MagnetoConfig
    base_model_prefix = "core"
    _no_split_modules = ["Layer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    built = False

    def ready(self) -> None:
        """Finish construction: tied weights, no other attention than torch's."""
        self.post_init()
        self.built = True
        self._check_attention()

    def head_module(self) -> nn.Module | None:
        """Return the head that a directory of another class may lack, if there is one."""
        return None

    def draw_head(self) -> nn.Module:
        """Return a new head."""
        raise NotImplementedError

    def _init_weights(self, module: nn.Module) -> None:
        """Draw a head that a directory did not bring, and the rows of a table that grew.

        Raises:
            ValueError: If the directory lacks anything else.
        """
        if not self.built:
            return
        if all(module is not own for own in self.modules()):
            self._draw_table(module)
        tied = {id(parameter) for parameter in self._tied_parameters()}
        lacking = {
            name: parameter
            for name, parameter in module.named_parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False)
            and id(parameter) not in tied
            and not parameter.is_meta  # it stays on disk until it is used
        }
        if not lacking:
            return
        head = self.head_module()
        inside = {} if head is None else {part: name for name, part in head.named_modules()}
        if module not in inside:
            raise ValueError(f"the weights lack {next(iter(lacking))} of a {type(module).__name__}")
        drawn = dict(self.draw_head().get_submodule(inside[module]).named_parameters())
        for name, parameter in lacking.items():
            parameter.data.copy_(drawn[name])

    def _draw_table(self, table: nn.Module) -> None:
        for name, parameter in table.named_parameters():
            nn.init.zeros_(parameter) if name == "bias" else nn.init.normal_(
                parameter, std=parameter.shape[-1] ** -0.5
            )
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]

    def _tied_parameters(self) -> Iterator[nn.Parameter]:
        return (self.get_parameter(name) for name in self.all_tied_weights_keys)

    def set_attn_implementation(
        self, attn_implementation: str | dict[str, str], allow_all_kernels: bool = False
    ) -> None:
        """Refuse any but torch's own function, "sdpa"."""
        super().set_attn_implementation(attn_implementation, allow_all_kernels)
        self._check_attention()

    def _check_attention(self) -> None:
        if (name := self.config._attn_implementation or "sdpa") != "sdpa":
            raise ValueError(f"attn_implementation is sdpa here, not {name!r}: torch's own "
                             "function, which uses its flash kernel where it can")  # fmt: skip

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


class MagnetoGenerationModel(MagnetoPreTrainedModel, GenerationMixin):
    """A core that writes: a table of embeddings, a head over the same vocabulary."""

    _tied_weights_keys = {"core.head.weight": "core.embedding.table.weight"}  # noqa: RUF012
    core: Any

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.core.embedding.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table."""
        self.core.embedding.table = value

    def get_output_embeddings(self) -> nn.Module:
        """Return the output projection."""
        return self.core.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the output projection."""
        self.core.head = new_embeddings

    def _valid_auto_compile_criteria(
        self, model_kwargs: dict[str, Any], generation_config: Any
    ) -> bool:
        """Compile `generate` only where `compile_config` asks for it.

        On a GPU transformers would do so for every static cache. Our attention reads what a cache
        holds, which grows by a token a step, so a CUDA graph would be recorded for every token.
        """
        if generation_config.compile_config is None:
            return False
        return super()._valid_auto_compile_criteria(  # type: ignore[attr-defined]
            model_kwargs, generation_config
        )

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Keep the mask two-dimensional: the core makes what its attention needs."""
        return attention_mask


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


def refuse(core: Any, others: Mapping[str, Any]) -> None:
    """Refuse what would change numbers and has no place here.

    Args:
        core: The model of ours.
        others: Arguments that a forward pass has no parameters for.

    Raises:
        ValueError: For one of them that is given, or if the residual stream's type is forced to one
            that the weights do not have.
    """
    for name in others:
        if others[name] is not None and name in REFUSED:
            raise ValueError(f"{name} cannot be given: {REFUSED[name]}")
    if others.get("output_attentions"):
        raise ValueError("output_attentions cannot be given: attention shares are not kept")
    weight = next(core.parameters())
    forced = core.config.residual_dtype
    if forced == "input" or torch.is_autocast_enabled(weight.device.type):
        return
    if getattr(torch, forced) != weight.dtype:
        own = str(weight.dtype).removeprefix("torch.")
        raise ValueError(
            f"the core's residual_dtype is {forced}, its weights are {own}: load it with "
            f"dtype={forced}, or set core['residual_dtype'] to 'input'"
        )


def like_weights(core: nn.Module, values: Tensor) -> Tensor:
    """Return what a processor made, fp32 numbers, in the type of the model's weights."""
    return values.to(next(core.parameters()).dtype)


def as_mask(attention_mask: Tensor | None, *shapes: tuple[int, ...]) -> Tensor | None:
    """Return transformers' mask of ones and zeros as a boolean one.

    Raises:
        ValueError: If it has none of these shapes.
    """
    if attention_mask is None:
        return None
    if tuple(attention_mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"the attention mask is {tuple(attention_mask.shape)}, not {wanted}")
    return attention_mask.bool()
