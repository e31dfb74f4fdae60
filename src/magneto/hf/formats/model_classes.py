"""Which classes of transformers are read as ours and written from ours, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from magneto.hf.formats import bart, beit, bert, gpt2, kosmos2, llama, vit
from magneto.hf.formats.layout import Pair, State
from magneto.language.models import LanguageModel, MaskedLanguageModel, TextClassifier, TextEncoder
from magneto.translation.model import TranslationModel
from magneto.vision.classifier import ImageClassifier


def nothing(their_config: Any, our_config: Any) -> State:
    """Return no tensors: theirs stores all that ours has."""
    return {}


@dataclass(frozen=True)
class Format:
    """One model class of transformers, and ours that computes the same.

    Attributes:
        name: Their `model_type`.
        config: Name of their configuration's class.
        classes: Names of their classes whose weights it reads; the first is what is written.
        model: Our class.
        ours: Our configuration from theirs.
        theirs: The values of theirs from ours.
        pairs: Which tensor is which.
        prefix: Of their tensors' names, in a model with a head.
        ignored: Of their tensors, what may be left behind, as a regular expression.
        absent: Of their tensors, what is computed and need not be written.
        computed: Tensors of ours that theirs computes.
        options: Of the constructor of their class.
    """

    name: str
    config: str
    classes: tuple[str, ...]
    model: Callable[[Any], nn.Module]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], dict[str, Any]]
    pairs: Callable[[Any], list[Pair]]
    prefix: str = "model."
    ignored: str = ""
    absent: str = ""
    computed: Callable[[Any, Any], State] = nothing
    options: dict[str, Any] = field(default_factory=dict)


def _kosmos2_positions(their_config: Any, our_config: Any) -> State:
    first = their_config.pad_token_id + 1
    table = kosmos2.fairseq_sinusoids(our_config.max_length, our_config.width, first)
    return {"decoder.position_embedding.table.weight": table}


# Of one name, the first reads the classes that no other names.
FORMATS = (
    Format(
        "gpt2", "GPT2Config", ("GPT2LMHeadModel", "GPT2Model"), LanguageModel, gpt2.ours,
        gpt2.theirs, gpt2.pairs, "transformer.", r"^lm_head|attn\.(masked_)?bias$",
    ),
    Format(
        "bert", "BertConfig", ("BertModel",), TextEncoder, bert.ours, bert.theirs, bert.pairs,
        "bert.", r"^pooler|^cls\.|^classifier|^qa_outputs|position_ids$",
        options={"add_pooling_layer": False},
    ),
    Format(
        "bert", "BertConfig", ("BertForMaskedLM", "BertForPreTraining"), MaskedLanguageModel,
        bert.ours_masked, bert.theirs, bert.masked_pairs, "bert.",
        r"^pooler|^cls\.predictions\.(bias|decoder)|^cls\.seq_relationship|position_ids$",
        absent=r"^cls\.predictions\.bias$",
    ),
    Format(
        "bert", "BertConfig", ("BertForSequenceClassification",), TextClassifier,
        bert.ours_classifier, bert.theirs, bert.classifier_pairs, "bert.", "position_ids$",
    ),
    Format(
        "bart", "BartConfig", ("BartForConditionalGeneration", "BartModel"), TranslationModel,
        bart.ours, bart.theirs, bart.pairs, ignored=r"^lm_head|embed_tokens",
    ),
    Format(
        "marian", "MarianConfig", ("MarianMTModel", "MarianModel"), TranslationModel,
        bart.ours_marian, bart.theirs, bart.marian_pairs,
        ignored=r"^lm_head|embed_tokens|embed_positions", absent="embed_positions",
    ),
    Format(
        "vit", "ViTConfig", ("ViTForImageClassification",), ImageClassifier, vit.ours, vit.theirs,
        vit.pairs, "vit.", r"^pooler|mask_token$",
    ),
    Format(
        "beit", "BeitConfig", ("BeitForImageClassification",), ImageClassifier, beit.ours,
        beit.theirs, beit.pairs, "beit.", r"mask_token$|relative_position_index$",
        absent="relative_position_index$",
    ),
    Format(
        "kosmos_2_text_model", "Kosmos2TextConfig", ("Kosmos2TextForCausalLM", "Kosmos2TextModel"),
        LanguageModel, kosmos2.ours, kosmos2.theirs, kosmos2.pairs, ignored="^lm_head",
        computed=_kosmos2_positions,
    ),
    Format(
        "llama", "LlamaConfig", ("LlamaForCausalLM", "LlamaModel"), LanguageModel, llama.ours,
        llama.theirs, llama.pairs, ignored="^lm_head",
    ),
    Format(
        "mistral", "MistralConfig", ("MistralForCausalLM", "MistralModel"), LanguageModel,
        llama.ours_mistral, llama.theirs_mistral, llama.pairs, ignored="^lm_head",
    ),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(form.name for form in FORMATS))
