"""What all our transformers models share: our initialisation, their switches, caches and losses.

All arithmetic is the core's. A core is initialised when it is built, and transformers' own
initialisation would erase the placement's gains: `_init_weights` draws only what is new.
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
    "output_attentions": "attention shares are not kept",
}
"""Arguments of transformers' models that change what they compute and have no place here: why."""


class MagnetoPreTrainedModel(WithoutCopies, PreTrainedModel):
    """A core of ours in `self.core`, maybe with a head beside it.

    A subclass says what it wraps, and has a `forward` with transformers' names.

    Attributes:
        core_class: Our model.
        config_class: Its configuration.
        head_name: Of the part that a directory of another class may lack, if there is one.
        features_by: What gives features where there are no hidden states.
    """

    core_class: ClassVar[Any] = None
    config_class = MagnetoConfig
    head_name: ClassVar[str] = ""
    features_by: ClassVar[str] = ""
    base_model_prefix = "core"
    _no_split_modules = ["Layer", "MultiwayLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    built = False
    core: Any

    def __init__(self, config: MagnetoConfig, model: nn.Module | None = None) -> None:
        """Wrap a model of ours, by default a new one."""
        super().__init__(config)
        self.take(self.core_class(self.own_config()) if model is None else model)
        self.post_init()
        self.built = True
        self._check_attention()

    def own_config(self) -> Any:
        """Return the configuration of the model of ours."""
        return self.config.core_config()

    def take(self, model: Any) -> None:
        """Make the parts of a model of ours the parts of this one."""
        self.core = model

    def unwrap(self) -> nn.Module:
        """Return the model of ours, in evaluation mode; the weights are shared."""
        return self.core.eval()

    @staticmethod
    def new_head(config: Any) -> nn.Module:
        """Draw the head of a configuration of ours, where there is one."""
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
        head = self.get_submodule(self.head_name) if self.head_name else None
        inside = {} if head is None else {part: name for name, part in head.named_modules()}
        if module not in inside:
            raise ValueError(f"the weights lack {next(iter(lacking))} of a {type(module).__name__}")
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

    def _stacks(self) -> Iterator[LayerStack | MultiwayEncoder]:
        kinds = (LayerStack, MultiwayEncoder)
        return (module for module in self.modules() if isinstance(module, kinds))

    def wants_hidden_states(self, others: Mapping[str, Any]) -> bool:
        """Whether the call, or else the configuration, asks for hidden states."""
        asked = others.get("output_hidden_states")
        return bool(self.config.output_hidden_states if asked is None else asked)

    def refuse(self, others: Mapping[str, Any]) -> None:
        """Refuse arguments without a parameter in `forward` that would change its numbers.

        Raises:
            ValueError: For one of them that is given; or for hidden states where there are none.
        """
        if self.features_by and self.wants_hidden_states(others):
            raise ValueError(f"output_hidden_states cannot be given: {self.features_by}")
        for name, why in REFUSED.items():
            given = others.get(name)
            if given is not None and given is not False:
                raise ValueError(f"{name} cannot be given: {why}")


class MagnetoTextModel(MagnetoPreTrainedModel):
    """A core that reads tokens: it has a table of embeddings."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table."""
        return self.core.embedding.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table."""
        self.core.embedding.table = value


class MagnetoGenerationModel(MagnetoTextModel, GenerationMixin):
    """A core that writes: a head over the vocabulary of its table."""

    _tied_weights_keys = {"core.head.weight": "core.embedding.table.weight"}  # noqa: RUF012

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

    The list fills while the stack runs, with layers + 1 tensors (batch, length, width), if wanted.
    """
    found: list[Tensor] = []
    if not wanted:
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


class GrowingView:
    """A preallocated cache of transformers, seen as one that grows: only what is filled."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.past = int(cache.get_seq_length())

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append (batch, heads, length, head width) to a layer; return all that is filled."""
        keys, values = self.cache.update(key, value, layer)
        end = self.past + key.shape[2]
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many positions were filled before this forward pass."""
        return self.past


def growing(cache: Any) -> Any:
    """Return a cache that gives back only what is filled; None stays None."""
    if isinstance(cache, EncoderDecoderCache):  # its other half is filled once
        return SimpleNamespace(
            self_attention_cache=growing(cache.self_attention_cache),
            cross_attention_cache=cache.cross_attention_cache, is_updated=cache.is_updated,
        )  # fmt: skip
    return GrowingView(cache) if getattr(cache, "is_compileable", False) else cache


def divided(total: Tensor, count: Tensor | int, wanted: Tensor | int | None) -> Tensor:
    """Return a mean loss: a sum over what it counts, or over the number that Trainer gives.

    Trainer gives the number of labels of all micro-batches of a step, and adds the losses up.
    """
    number = torch.as_tensor(count if wanted is None else wanted, device=total.device)
    return total / number.clamp(min=1)


def token_loss(logits: Tensor, labels: Tensor | None, number: Tensor | int | None) -> Tensor | None:
    """Return the summed cross-entropy over a number, by default of labels; None without labels."""
    if labels is None:
        return None
    rows, answers = logits.flatten(0, -2).float(), labels.flatten().to(logits.device)
    total = F.cross_entropy(rows, answers, ignore_index=IGNORED, reduction="sum")
    return divided(total, (answers != IGNORED).sum(), number)


def classification_loss(
    logits: Tensor, labels: Tensor | None, config: Any, number: Tensor | int | None
) -> Tensor | None:
    """Return the loss of one answer per input, as `config.problem_type` says; None without labels.

    Args:
        logits: (batch, num_labels).
        labels: "single_label_classification": (batch,) numbers of classes, -100 for none; the loss
            is the cross-entropy. "multi_label_classification": (batch, num_labels) of 0 and 1; the
            binary cross-entropy. "regression": (batch, num_labels), or (batch,) of one number; the
            squared error.
        config: Of the model; without a problem type it gets the one that the labels speak for.
        number: What the summed loss is divided by, Trainer's `num_items_in_batch`; None for the
            number of labels.

    Raises:
        ValueError: If labels and logits do not fit together.
    """
    if labels is None:
        return None
    if config.problem_type is None:
        whole = labels.dtype in (torch.long, torch.int)
        kind = "single_label_classification" if whole else "multi_label_classification"
        config.problem_type = "regression" if config.num_labels == 1 else kind
    logits, labels = logits.float(), labels.to(logits.device)
    if config.problem_type == "single_label_classification":
        return token_loss(logits, labels, number)
    if labels.numel() != logits.numel():
        raise ValueError(f"labels are {tuple(labels.shape)}, the answers {tuple(logits.shape)}")
    error = {
        "regression": F.mse_loss,
        "multi_label_classification": F.binary_cross_entropy_with_logits,
    }[config.problem_type]
    total = error(logits, labels.reshape(logits.shape).float(), reduction="sum")
    return divided(total, labels.numel(), number)
