"""Base classes of the models for transformers: initialisation, caches, losses, arguments.

The wrapped Magneto model, called the core, does the computation. The core is initialised when it is
built. The initialisation of transformers would erase the placement's gains, so `_init_weights`
initialises new weights only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache

from magneto.functional.cross_entropy import IGNORED
from magneto.hf.configuration import MagnetoConfig, WithoutCopies
from magneto.nn.multiway import MultiwayEncoder
from magneto.nn.transformer import LayerStack

_POSITIONS = "positions are computed from attention_mask"
_EMBEDDINGS = "give input_ids, which the model embeds"
_PACKED = "separate packed texts by an attention_mask of shape (batch, length, length)"
_HEADS = "heads cannot be masked"
UNSUPPORTED_ARGUMENTS = {
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
    "encoder_hidden_states": "the model has no cross-attention",
    "shift_labels": "only causal language models shift labels",
    "output_attentions": "attention weights are not returned",
}
"""Reasons for refusing arguments of transformers' models that would change the result."""


class MagnetoPreTrainedModel(WithoutCopies, PreTrainedModel):
    """Base class of models for transformers, with a Magneto model in `self.core`.

    Attributes:
        core_class: Class of the Magneto model.
        config_class: Class of the transformers configuration.
        head_name: Name of a head that may be missing in a directory; "" without such a head.
        hidden_states_advice: Alternative to hidden states, if the model does not return them.
    """

    core_class: ClassVar[Any] = None
    config_class = MagnetoConfig
    head_name: ClassVar[str] = ""
    hidden_states_advice: ClassVar[str] = ""
    base_model_prefix = "core"
    _no_split_modules = ["Layer", "MultiwayLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    built = False
    core: Any

    def __init__(self, config: MagnetoConfig, model: nn.Module | None = None) -> None:
        """Wrap a Magneto model, by default a new one."""
        super().__init__(config)
        self.set_core(self.core_class(self.own_config()) if model is None else model)
        self.post_init()
        self.built = True
        self._check_attention()

    def own_config(self) -> Any:
        return self.config.core_config()

    def set_core(self, model: Any) -> None:
        self.core = model

    def unwrap(self) -> nn.Module:
        return self.core.eval()

    @staticmethod
    def new_head(config: Any) -> nn.Module:
        """Build a new head from Magneto's configuration."""
        raise NotImplementedError

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a head that a directory lacks, and new rows of a resized embedding."""
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
            and not parameter.is_meta  # offloaded to disk
        }
        if not lacking:
            return
        head = self.get_submodule(self.head_name) if self.head_name else None
        inside = {} if head is None else {part: name for name, part in head.named_modules()}
        if module not in inside:
            raise ValueError(f"missing weights: {next(iter(lacking))} of a {type(module).__name__}")
        drawn = self.new_head(self.own_config()).get_submodule(inside[module])
        for name, parameter in lacking.items():
            parameter.data.copy_(drawn.get_parameter(name))

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
        super().set_attn_implementation(attn_implementation, allow_all_kernels)
        self._check_attention()

    def _check_attention(self) -> None:
        if (name := self.config._attn_implementation or "sdpa") != "sdpa":
            raise ValueError(f"attn_implementation must be 'sdpa', not {name!r}. sdpa uses torch's "
                             "flash kernel where possible.")  # fmt: skip

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """Enable or disable the layers' own, non-reentrant recomputation in the backward pass."""
        if every_n_layers != 1:
            raise ValueError(f"every_n_layers={every_n_layers} is not supported, only 1")
        for stack in self._stacks():
            stack.config = replace(stack.config, checkpoint_activations=enable)

    @property
    def is_activation_checkpointing(self) -> bool:
        return any(stack.config.checkpoint_activations for stack in self._stacks())

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Older name of `is_activation_checkpointing`."""
        return self.is_activation_checkpointing

    def _stacks(self) -> Iterator[LayerStack | MultiwayEncoder]:
        kinds = (LayerStack, MultiwayEncoder)
        return (module for module in self.modules() if isinstance(module, kinds))

    def wants_hidden_states(self, others: Mapping[str, Any]) -> bool:
        given = others.get("output_hidden_states")
        return bool(self.config.output_hidden_states if given is None else given)

    def check_arguments(self, others: Mapping[str, Any]) -> None:
        """Raise ValueError for an unsupported argument that would change the result."""
        if self.hidden_states_advice and self.wants_hidden_states(others):
            raise ValueError(f"output_hidden_states is not supported: {self.hidden_states_advice}")
        for name, why in UNSUPPORTED_ARGUMENTS.items():
            given = others.get(name)
            if given is not None and given is not False:
                raise ValueError(f"{name} is not supported: {why}")


class MagnetoTextModel(MagnetoPreTrainedModel):
    """Base class of models with a token embedding."""

    def get_input_embeddings(self) -> nn.Module:
        return self.core.embedding.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.core.embedding.table = value


class MagnetoGenerationModel(MagnetoTextModel, GenerationMixin):
    """Base class of models that generate text."""

    _tied_weights_keys = {"core.head.weight": "core.embedding.table.weight"}  # noqa: RUF012

    def get_output_embeddings(self) -> nn.Module:
        return self.core.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.core.head = new_embeddings

    def _valid_auto_compile_criteria(
        self, model_kwargs: dict[str, Any], generation_config: Any
    ) -> bool:
        """Compile `generate` only if there is a `compile_config`.

        On a GPU, transformers compiles `generate` for every static cache. Magneto's attention reads
        only the filled part of a cache. The filled part grows by a token per step, so each step
        would need its own CUDA graph.
        """
        if generation_config.compile_config is None:
            return False
        return super()._valid_auto_compile_criteria(  # type: ignore[attr-defined]
            model_kwargs, generation_config
        )

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        return attention_mask


@contextmanager
def hidden_states(stack: LayerStack, enabled: bool) -> Iterator[list[Tensor]]:
    """Collect the inputs of each layer and the stack's output while the stack runs.

    If `enabled`, the list contains layers + 1 tensors of shape (batch, length, width).
    """
    found: list[Tensor] = []
    if not enabled:
        yield found
        return
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
        for layer in stack.layers
    ]
    hook: Any = lambda module, inputs, output: found.append(output)  # noqa: E731
    handles.append(stack.register_forward_hook(hook))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def cast_like_weights(core: nn.Module, values: Tensor) -> Tensor:
    """Convert a processor's fp32 values to the dtype of the model's weights."""
    return values.to(next(core.parameters()).dtype)


def as_mask(attention_mask: Tensor | None, *shapes: tuple[int, ...]) -> Tensor | None:
    """Convert transformers' mask to a boolean mask; raise ValueError for an unknown shape."""
    if attention_mask is None:
        return None
    if tuple(attention_mask.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"the shape of attention_mask is {tuple(attention_mask.shape)}, but must "
                         f"be {expected}")  # fmt: skip
    return attention_mask.bool()


class GrowingView:
    """View of a preallocated cache that returns only the filled part."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.past = int(cache.get_seq_length())

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, heads, length, head width); return the filled part."""
        keys, values = self.cache.update(key, value, layer)
        end = self.past + key.shape[2]
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        return self.past


def growing_cache(cache: Any) -> Any:
    """Return a view of a cache that returns only the filled part; None stays None."""
    if isinstance(cache, EncoderDecoderCache):  # the cross-attention part is filled once
        return SimpleNamespace(
            self_attention_cache=growing_cache(cache.self_attention_cache),
            cross_attention_cache=cache.cross_attention_cache, is_updated=cache.is_updated,
        )  # fmt: skip
    return GrowingView(cache) if getattr(cache, "is_compileable", False) else cache


def mean_loss(total: Tensor, count: Tensor | int, number: Tensor | int | None) -> Tensor:
    """Divide a summed loss by `number`, or by `count` if `number` is None.

    Trainer passes as `number` the labels of all micro-batches of a step, and sums their losses.
    """
    divisor = torch.as_tensor(count if number is None else number, device=total.device)
    return total / divisor.clamp(min=1)


def token_loss(logits: Tensor, labels: Tensor | None, number: Tensor | int | None) -> Tensor | None:
    """Return the mean cross-entropy of tokens; None without labels. See `mean_loss`."""
    if labels is None:
        return None
    rows, targets = logits.flatten(0, -2).float(), labels.flatten().to(logits.device)
    total = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
    return mean_loss(total, (targets != IGNORED).sum(), number)


def classification_loss(
    logits: Tensor, labels: Tensor | None, config: Any, number: Tensor | int | None
) -> Tensor | None:
    """Return the mean loss of inputs with one prediction each.

    Args:
        logits: Logits of shape (batch, num_labels).
        labels: Labels for `config.problem_type`; None returns None. "single_label_classification"
            (cross-entropy) needs class numbers (batch,), where -100 is ignored.
            "multi_label_classification" (binary cross-entropy) needs 0 or 1 for each class, (batch,
            num_labels). "regression" (squared error) needs numbers (batch, num_labels) or (batch,).
        config: Configuration of the model; a missing `problem_type` is derived from the labels.
        number: Divisor of the summed loss, Trainer's `num_items_in_batch`; None for the number of
            labels.

    Raises:
        ValueError: If the shapes of labels and logits do not match.
    """
    if labels is None:
        return None
    if config.problem_type is None:
        integers = labels.dtype in (torch.long, torch.int)
        kind = "single_label_classification" if integers else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else kind
    logits, labels = logits.float(), labels.to(logits.device)
    if config.problem_type == "single_label_classification":
        return token_loss(logits, labels, number)
    if labels.numel() != logits.numel():
        raise ValueError(f"the shape of labels is {tuple(labels.shape)}, but that of logits is "
                         f"{tuple(logits.shape)}")  # fmt: skip
    error = {
        "regression": F.mse_loss,
        "multi_label_classification": F.binary_cross_entropy_with_logits,
    }[config.problem_type]
    total = error(logits, labels.reshape(logits.shape).float(), reduction="sum")
    return mean_loss(total, labels.numel(), number)
