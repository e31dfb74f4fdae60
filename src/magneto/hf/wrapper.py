"""Configurations and base class of Magneto's models for Hugging Face's transformers.

An exported directory can also be loaded without `register()`, by `from_pretrained(DIR,
trust_remote_code=True)`. With `trust_remote_code=True`, transformers runs a short module in the
directory. The module imports Magneto's classes from the installed package.

The wrapped Magneto model is called the core. Magneto's code initialises the core,
because transformers' initialisation would erase the placement's gains.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel

from magneto.config import nearest
from magneto.functional.cross_entropy import IGNORED
from magneto.language.config import (
    LanguageModelConfig,
    MaskedLanguageModelConfig,
    TextClassifierConfig,
)
from magneto.nn.config import TransformerConfig
from magneto.nn.multiway import MultiwayEncoder
from magneto.nn.transformer import LayerStack
from magneto.speech.config import TransducerConfig
from magneto.translation.config import TranslationConfig
from magneto.vision.config import ImageClassifierConfig, SegmenterConfig
from magneto.vision_language.config import (
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    MaskedDataModelConfig,
    QuestionAnsweringConfig,
    VisionLanguageConfig,
    VisualReasonerConfig,
)

MODULE = "magneto_classes"
MODULE_SOURCE = '''"""Classes of this directory, imported from the package magneto."""

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


def auto_map(classes: Mapping[str, str]) -> dict[str, str]:
    return {auto: f"{MODULE}.{name}" for auto, name in classes.items()}


class WithoutCopies:
    """Mix-in that stops transformers from copying a class's source code into a directory."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "") -> None:
        """Do nothing."""


class SavedWithModule(WithoutCopies):
    """Mix-in whose `save_pretrained` also writes the module to which `auto_map` refers."""

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> Any:
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        Path(save_directory, f"{MODULE}.py").write_text(MODULE_SOURCE, encoding="utf-8")
        return super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


SHARED = {"vocab_size", "max_length", "head_dim"}
"""Field names that occur both in Magneto's and in transformers' configurations."""

ALSO_TRANSFORMERS = {
    "attn_implementation", "auto_map", "name_or_path", "num_labels", "output_attentions",
    "tie_word_embeddings", "torch_dtype", "use_cache",
}  # fmt: skip
"""Arguments that transformers' configurations accept, although no signature lists them."""

TOKENIZER = {"AutoTokenizer": "MagnetoSentencePieceTokenizer"}
IMAGE_PROCESSOR = {"AutoImageProcessor": "MagnetoImageProcessor"}
PROCESSOR = {**TOKENIZER, **IMAGE_PROCESSOR, "AutoProcessor": "MagnetoVisionLanguageProcessor"}
"""Processor classes of vision-language models, by Auto class."""


def transformers_sizes(config: TransformerConfig) -> dict[str, int]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.decoder_layers or config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads or config.heads,
        "head_dim": config.head_width,
    }


def placement_name(config: TransformerConfig) -> str:
    """Return the placement's name, or raise ValueError if the placement is not built in."""
    name = config.row.name
    if replace(config, placement=name).row != config.row:
        raise ValueError(f"placement {name!r} differs from Magneto's placement of that name. "
                         "Only Magneto's placements can be saved.")  # fmt: skip
    return name


class MagnetoConfig(SavedWithModule, PretrainedConfig):
    """Configuration of language models for the library transformers.

    The other configurations are subclasses of this class. `core` contains the fields of Magneto's
    configuration. These fields are separate because some names, such as `max_length`, have another
    meaning in transformers. Sizes are also available under transformers' names, such as
    `hidden_size`.

    Attributes:
        shape: Class of Magneto's own configuration.
        classes: For each Auto class of transformers, the name of Magneto's class.
        num_labels_field: Field of `shape` that corresponds to transformers' `num_labels`.
        defaults: Default values of fields that have no default in `shape`.
        values: Default values of transformers' own fields.
    """

    model_type = "magneto"
    shape: ClassVar[Any] = LanguageModelConfig
    classes: ClassVar = {"AutoModelForCausalLM": "MagnetoForCausalLM", **TOKENIZER}
    num_labels_field: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {"vocab_size": 32768}
    values: ClassVar[Mapping[str, Any]] = {}
    # A list, because Trainer adds it to a list.
    keys_to_ignore_at_inference = ["cache", "encoder_last_hidden_state"]  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        """Override transformers' method, which would convert a subclass to a dataclass."""

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        if (name := self.num_labels_field) and "id2label" not in values:
            usual = self.defaults.get(name, getattr(self.shape, name, None))
            values.setdefault("num_labels", (core or values).get(name, usual))
        if core is None:
            core = self._new_core(values)
        elif beside := {field.name for field in fields(self.shape)} & set(values) - SHARED:
            raise ValueError(
                f"{', '.join(sorted(beside))} must be in the dictionary `core`, not beside it"
            )
        # Reading a directory must run no code of its author's: an import path would.
        if ":" in str(core.get("placement", "")):
            raise ValueError(f"placement {core['placement']!r} is not one of Magneto's, so it "
                             "cannot be saved or loaded")  # fmt: skip
        config = self.shape(**core)
        self.core = core | {"placement": placement_name(config)}
        values = {**transformers_sizes(config), **self.values, **values}
        # transformers changes this copy when it resizes the vocabulary.
        self.vocab_size = values.pop("vocab_size", self.core.get("vocab_size"))
        values.setdefault("tie_word_embeddings", self.core.get("tie_embeddings", False))
        if values.get("is_encoder_decoder"):
            values.setdefault("decoder_start_token_id", values.get("bos_token_id"))
        super().__init__(**values)
        models = {auto: name for auto, name in self.classes.items() if "AutoModel" in auto}
        self.auto_map = auto_map({"AutoConfig": type(self).__name__, **models})

    def _new_core(self, values: dict[str, Any]) -> dict[str, Any]:
        own = {field.name for field in fields(self.shape)}
        known = set(signature(PretrainedConfig.__init__).parameters) | ALSO_TRANSFORMERS
        for name in values:
            if name in own | known or name.startswith("_") or name.endswith("_token_id"):
                continue
            raise ValueError(f"{type(self).__name__} has no {name}{nearest(name, sorted(own))}")
        given = {name: values.pop(name) for name in own & set(values)}
        return vars(self.shape(**{**self.defaults, **given}))

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        """Convert a Magneto model's configuration to a configuration for transformers.

        `end` is the id of the end token, which is also the begin and padding token. `values`
        are fields that only transformers' configuration has. A placement that is not built in
        raises ValueError.
        """
        held = {field.name for field in fields(config)} - {"pretrained"}
        names = [field.name for field in fields(cls.shape) if field.name in held]
        core = vars(cls.shape(**{name: getattr(config, name) for name in names}))
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
        return cls(core, **(ends | values))

    def core_config(self) -> Any:
        """Return Magneto's configuration, with this object's `vocab_size` and `num_labels`.

        Raises:
            ValueError: If another size, such as `hidden_size`, differs from the size in `core`.
        """
        size = {} if self.vocab_size is None else {"vocab_size": self.vocab_size}
        count = {self.num_labels_field: self.num_labels} if self.num_labels_field else {}
        config = self.shape(**{**self.core, **size, **count})
        for name, held in transformers_sizes(config).items():
            if getattr(self, name) != held:
                raise ValueError(f"{name} is {getattr(self, name)}, but config.core gives {held}. "
                                 "Change config.core instead.")  # fmt: skip
        return config


class MagnetoEncoderConfig(MagnetoConfig):
    """Configuration of text encoders, with or without a head, for the library transformers."""

    model_type = "magneto-encoder"
    shape = MaskedLanguageModelConfig
    classes: ClassVar = {
        "AutoModel": "MagnetoEncoderModel",
        "AutoModelForMaskedLM": "MagnetoForMaskedLM",
        "AutoModelForSequenceClassification": "MagnetoForSequenceClassification",
        **TOKENIZER,
    }

    def __init__(self, core: dict[str, Any] | None = None, **values: Any) -> None:
        self.classifier_dropout = values.pop("classifier_dropout", 0.1)
        self.classifier_pooling = values.pop("classifier_pooling", "first")
        super().__init__(core, **values)

    @classmethod
    def of(cls, config: TransformerConfig, end: int | None = None, **values: Any) -> MagnetoConfig:
        if isinstance(config, TextClassifierConfig):
            values.setdefault("classifier_dropout", config.head_dropout)
            values.setdefault("classifier_pooling", config.pooling)
            if "id2label" not in values:
                values.setdefault("num_labels", config.classes)
        return super().of(config, end, **values)

    def classifier_config(self) -> TextClassifierConfig:
        names = TextClassifierConfig.__dataclass_fields__
        given = {k: v for k, v in vars(self.core_config()).items() if k in names}
        head = {"classes": self.num_labels, "head_dropout": self.classifier_dropout,
                "pooling": self.classifier_pooling}  # fmt: skip
        return TextClassifierConfig(**given, **head)


def configuration(
    kind: str, shape: type[TransformerConfig], classes: Mapping[str, str], **others: Any
) -> type[MagnetoConfig]:
    """Make the class Magneto{kind}Config."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()
    body = {"__doc__": f"Configuration with a `{shape.__name__}`.", "__module__": __name__,
            "model_type": f"magneto-{words}", "shape": shape, "classes": classes}  # fmt: skip
    return type(f"Magneto{kind}Config", (MagnetoConfig,), body | others)


MagnetoSeq2SeqConfig = configuration(
    "Seq2Seq", TranslationConfig, {"AutoModelForSeq2SeqLM": "MagnetoForSeq2SeqLM", **TOKENIZER},
    defaults={"vocab_size": 32768, "encoder_layers": 6, "decoder_layers": 6},
    values={"is_encoder_decoder": True, "tie_word_embeddings": True},
)  # fmt: skip
MagnetoTransducerConfig = configuration(
    "Transducer", TransducerConfig,
    {
        "AutoModel": "MagnetoForTransducer",
        "AutoFeatureExtractor": "MagnetoSpeechFeatureExtractor", **TOKENIZER,
    },
)  # fmt: skip
MagnetoImageConfig = configuration(
    "Image", ImageClassifierConfig,
    {"AutoModelForImageClassification": "MagnetoForImageClassification", **IMAGE_PROCESSOR},
    num_labels_field="classes", defaults={},
)  # fmt: skip
MagnetoSegmentationConfig = configuration(
    "Segmentation", SegmenterConfig,
    {"AutoModelForSemanticSegmentation": "MagnetoForSemanticSegmentation", **IMAGE_PROCESSOR},
    num_labels_field="classes", defaults={},
)  # fmt: skip
MagnetoVisionLanguageConfig = configuration(
    "VisionLanguage", VisionLanguageConfig, {"AutoModel": "MagnetoVisionLanguageModel", **PROCESSOR}
)
MagnetoMaskedDataConfig = configuration(
    "MaskedData", MaskedDataModelConfig,
    {"AutoModelForPreTraining": "MagnetoForMaskedDataModelling", **PROCESSOR},
    defaults={"vocab_size": 64010, "codes": 8192},
)  # fmt: skip
MagnetoQuestionAnsweringConfig = configuration(
    "QuestionAnswering", QuestionAnsweringConfig,
    {"AutoModelForVisualQuestionAnswering": "MagnetoForVisualQuestionAnswering", **PROCESSOR},
    num_labels_field="answers", defaults={"vocab_size": 64010, "answers": 3129},
)  # fmt: skip
MagnetoVisualReasoningConfig = configuration(
    "VisualReasoning", VisualReasonerConfig, {"AutoModel": "MagnetoForVisualReasoning", **PROCESSOR}
)
MagnetoImageTextRetrievalConfig = configuration(
    "ImageTextRetrieval", ImageTextRetrieverConfig,
    {
        "AutoModel": "MagnetoForImageTextRetrieval",
        "AutoModelForZeroShotImageClassification": "MagnetoForImageTextRetrieval", **PROCESSOR,
    },
)  # fmt: skip
MagnetoImageCaptioningConfig = configuration(
    "ImageCaptioning", ImageCaptionerConfig,
    {"AutoModelForImageTextToText": "MagnetoForImageCaptioning", **PROCESSOR},
)  # fmt: skip

CONFIGURATIONS: tuple[type[MagnetoConfig], ...] = (
    MagnetoConfig, MagnetoEncoderConfig, MagnetoSeq2SeqConfig, MagnetoTransducerConfig,
    MagnetoImageConfig, MagnetoSegmentationConfig, MagnetoVisionLanguageConfig,
    MagnetoMaskedDataConfig, MagnetoQuestionAnsweringConfig, MagnetoVisualReasoningConfig,
    MagnetoImageTextRetrievalConfig, MagnetoImageCaptioningConfig,
)  # fmt: skip
"""All configuration classes, for registration and export."""


def register() -> None:
    """Register Magneto's classes with transformers' Auto classes."""
    import transformers

    from magneto import hf

    for config in CONFIGURATIONS:
        transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
        for auto, name in config.classes.items():
            loads: Any = getattr(transformers, auto)
            if auto == "AutoImageProcessor":
                loads.register(config, slow_image_processor_class=getattr(hf, name), exist_ok=True)
            else:  # a directory's own tokenizer_config.json goes before
                loads.register(config, getattr(hf, name), exist_ok=True)


UNSUPPORTED_ARGUMENTS = {
    "positions are computed from attention_mask": ("position_ids", "decoder_position_ids"),
    "give input_ids; the model computes the embeddings": ("inputs_embeds", "decoder_inputs_embeds"),
    "the model has no token types": ("token_type_ids",),
    "separate packed texts by an attention_mask of shape (batch, length, length)": (
        "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx",
    ),
}  # fmt: skip
"""Unsupported arguments, grouped by the advice in the error message."""
HARMLESS_ARGUMENTS = {
    "return_dict", "output_hidden_states", "use_cache", "num_items_in_batch",
    "tokenizer", "assistant_tokenizer",  # from `generate`, which needs them for stop strings
}  # fmt: skip
"""Arguments that may be passed although `forward` does not list them. Other unlisted arguments
raise an error."""


class MagnetoPreTrainedModel(WithoutCopies, PreTrainedModel):
    """Base class of models for transformers, with a Magneto model in `self.core`.

    Attributes:
        core_class: Class of the Magneto model.
        head_name: Name of the head's module, or "". If the loaded directory lacks weights of the
            head, they are initialised.
        hidden_states_advice: Advice in the error message if hidden states are requested but not
            supported. "" if they are supported.
    """

    core_class: ClassVar[Any] = None
    config_class = MagnetoConfig
    head_name: ClassVar[str] = ""
    hidden_states_advice: ClassVar[str] = ""
    base_model_prefix = "core"
    _no_split_modules = ["Layer", "MultiwayLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["cache"]  # noqa: RUF012
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
        """Return the configuration of the Magneto model."""
        return self.config.core_config()

    def set_core(self, model: Any) -> None:
        self.core = model

    def unwrap(self) -> nn.Module:
        """Return the Magneto model in evaluation mode.

        The result shares the weights of this model.
        """
        return self.core.eval()

    def _init_weights(self, module: nn.Module) -> None:
        # New weights are those of a head that a directory lacks, and of a resized embedding.
        if not self.built:
            return
        if all(module is not own for own in self.modules()):
            self._draw_table(module)
        tied = {id(self.get_parameter(name)) for name in self.all_tied_weights_keys}
        lacking = {
            name: parameter
            for name, parameter in module.named_parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False)
            and id(parameter) not in tied
            and not parameter.is_meta  # offloaded to disk
        }
        if not lacking:
            return
        head = self.get_submodule(self.head_name).modules() if self.head_name else ()
        if all(module is not part for part in head):
            raise ValueError(f"missing weights: {next(iter(lacking))} of a {type(module).__name__}")
        fresh = deepcopy(module)  # loaded weights of the module stay
        fresh.reset_parameters()  # type: ignore[operator]
        for name, parameter in lacking.items():
            parameter.data.copy_(fresh.get_parameter(name))

    def _draw_table(self, table: nn.Module) -> None:
        for name, parameter in table.named_parameters():
            nn.init.zeros_(parameter) if name == "bias" else nn.init.normal_(
                parameter, std=parameter.shape[-1] ** -0.5
            )
            parameter._is_hf_initialized = True  # type: ignore[attr-defined]

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
        if every_n_layers != 1:
            raise ValueError(f"every_n_layers={every_n_layers} is not supported, only 1")
        for stack in self._stacks():
            stack.config = replace(stack.config, checkpoint_activations=enable)

    @property
    def is_activation_checkpointing(self) -> bool:
        return any(stack.config.checkpoint_activations for stack in self._stacks())

    def _stacks(self) -> Iterator[LayerStack | MultiwayEncoder]:
        kinds = (LayerStack, MultiwayEncoder)
        return (module for module in self.modules() if isinstance(module, kinds))

    def wants_hidden_states(self, others: Mapping[str, Any]) -> bool:
        given = others.get("output_hidden_states")
        return bool(self.config.output_hidden_states if given is None else given)

    def check_arguments(self, others: Mapping[str, Any]) -> None:
        """Raise ValueError for an unsupported argument."""
        if self.hidden_states_advice and self.wants_hidden_states(others):
            raise ValueError(f"output_hidden_states is not supported: {self.hidden_states_advice}")
        given = {name for name, value in others.items() if value is not None and value is not False}
        # A tokenizer of transformers returns them by default: 0 for a single text.
        if "token_type_ids" in given and not others["token_type_ids"].any():
            given.remove("token_type_ids")
        for name in sorted(given - HARMLESS_ARGUMENTS):
            advice = [why for why, names in UNSUPPORTED_ARGUMENTS.items() if name in names]
            why = advice[0] if advice else "the model has no such argument"
            raise ValueError(f"{name} is not supported: {why}")


@contextmanager
def hidden_states(stack: LayerStack, enabled: bool) -> Iterator[list[Any]]:
    """Collect the input of each layer and the output of the stack.

    For n layers, the yielded list gets n + 1 tensors of shape (batch, length, width). If `enabled`
    is False, the list stays empty.
    """
    found: list[Any] = []
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


def as_mask(attention_mask: Tensor | None, *shapes: tuple[int, ...]) -> Tensor | None:
    """Convert transformers' mask to a boolean mask.

    A shape that is not in `shapes` raises ValueError.
    """
    if attention_mask is None:
        return None
    if tuple(attention_mask.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(f"the shape of attention_mask is {tuple(attention_mask.shape)}, but must "
                         f"be {expected}")  # fmt: skip
    return attention_mask.bool()


def mean_loss(total: Tensor, count: Tensor | int, number: Tensor | int | None) -> Any:
    """Divide a summed loss by `number`, or by `count` if `number` is None.

    `number` comes from Trainer: the number of labels in all micro-batches of a step.
    """
    divisor = torch.as_tensor(count if number is None else number, device=total.device)
    return total / divisor.clamp(min=1)


def token_loss(logits: Tensor, labels: Tensor | None, number: Tensor | int | None) -> Any:
    """Return the mean cross-entropy of tokens, or None without labels.

    For `number`, see `mean_loss`.
    """
    if labels is None:
        return None
    rows, targets = logits.flatten(0, -2).float(), labels.flatten().to(logits.device)
    total = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
    return mean_loss(total, (targets != IGNORED).sum(), number)


def classification_loss(
    logits: Tensor, labels: Tensor | None, config: Any, number: Tensor | int | None
) -> Any:
    """Return the mean loss of a classifier, or None without labels.

    `config.problem_type` names the loss. For "single_label_classification", labels are class
    numbers (batch,), and the loss is the cross-entropy. The label -100 is ignored. For
    "multi_label_classification", labels are 0 or 1 of shape (batch, num_labels), and the loss is
    the binary cross-entropy. For "regression", labels are numbers of shape (batch, num_labels), and
    the loss is the squared error.

    If `config.problem_type` is None, this function sets `config.problem_type`. A model with one
    label gets "regression". For a model with several labels, integer labels mean
    "single_label_classification". Labels that are not integers mean "multi_label_classification".
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
