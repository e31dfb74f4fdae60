"""Formats of torchscale's models and of BEiT-3's weights (arXiv 2208.10442).

Supported placements of torchscale are Sub-LN, DeepNorm, Pre-LN and Post-LN. The weights do not
determine the number of heads, the use of DeepNorm, or the scale of embeddings. These three values
come from torchscale's arguments.

BEiT-3's tensors have the names in unilm's beit3/modeling_finetune.py. The pre-trained weights
name their heads `mlm_head` and `mim_head`. In tensor names, "A" means vision and "B" means
language. The first two rows of position tables are unused. An image classifier's language tensors
are ignored. For BEiT-3 in timm, see `magneto.hf.timm`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from magneto.files import import_extra
from magneto.hf.families import fairseq_decoder_layer, fairseq_layer, fairseq_sinusoids, layers
from magneto.hf.layout import (
    FROM_TWO,
    TOKEN,
    Fields,
    Names,
    State,
    WeightFormat,
    activation,
    read_fields,
    square,
    tensor,
    write_fields,
)
from magneto.hf.timm import head_count
from magneto.language.config import LanguageModelConfig, TextEncoderConfig
from magneto.language.models import LanguageModel, TextEncoder
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel
from magneto.vision.config import ImageClassifierConfig
from magneto.vision.models import ImageClassifier
from magneto.vision_language.config import (
    ImageCaptionerConfig,
    ImageTextRetrieverConfig,
    MaskedDataModelConfig,
    QuestionAnsweringConfig,
    VisionLanguageConfig,
    VisualReasonerConfig,
)
from magneto.vision_language.model import (
    ImageCaptioner,
    ImageTextRetriever,
    MaskedDataModel,
    QuestionAnswerer,
    VisionLanguageEncoder,
    VisualReasoner,
)

# torchscale's defaults of missing arguments equal ours.
FIELDS: Fields = {
    "activation": activation("activation_fn", {"gelu": "gelu", "relu": "relu", "swish": "silu"}),
    "norm_eps": "layernorm_eps", "drop_path": "drop_path_rate",
    **{rate: rate for rate in ("dropout", "attention_dropout", "activation_dropout")},
}  # fmt: skip


class _Torchscale(WeightFormat):
    """Format of torchscale's `Decoder`, `Encoder` and `EncoderDecoder`."""

    name, placements = "torchscale", ("pre", "post", "sub", "deepnorm")
    refused: ClassVar = {
        "multiway": False, "moe_freq": 0, "xpos_rel_pos": False, "normalize_output": True,
    }  # fmt: skip
    absent = "^logits_bias$|^token_type"

    def __init__(self, model: Any, config: Any, *stacks: str) -> None:
        self.model, self.config, self.stacks = model, config, stacks
        # Version numbers, and the encoder's output projection.
        left = r"(^|\.)version$|_float_tensor$"
        self.ignored = left + ("|^encoder.output" if len(stacks) == 1 else "")

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        if not any(".ffn.fc1." in name or ".self_attn_layer_norm." in name for name in state):
            return False
        return self.stacks == tuple(
            stack for stack in ("encoder", "decoder")
            if any(name.startswith(f"{stack}.layers.") for name in _stack_names(state, args))
        )  # fmt: skip

    def normalise(self, state: State, args: Mapping[str, Any]) -> State:
        state = _stack_names(state, args)
        table = state[f"{self.stacks[0]}.embed_tokens.weight"]
        copies = ["decoder.output_projection.weight"] if "decoder" in self.stacks else []
        copies += ["decoder.embed_tokens.weight"] if len(self.stacks) == 2 else []
        equal = [name for name in copies if name in state and torch.equal(state[name], table)]
        if len(self.stacks) == 2 and equal != copies:
            raise ValueError("separate embeddings of source, target and output are not supported")
        return {name: tensor for name, tensor in state.items() if name not in equal}

    def read(self, state: State, args: Mapping[str, Any]) -> Any:
        values = [_stack_values(state, stack, args) for stack in self.stacks]
        layers = [value.pop("layers") for value in values]
        for name, value in values[0].items():
            if values[-1][name] != value:
                raise ValueError(f"encoder and decoder must have the same {name}, not {value!r} "
                                 f"and {values[-1][name]!r}")  # fmt: skip
        own: dict[str, Any] = {"layers": layers[0]}
        if len(layers) == 2:
            own = {"encoder_layers": layers[0], "decoder_layers": layers[1]}
        elif self.stacks == ("decoder",):
            own["tie_embeddings"] = "decoder.output_projection.weight" not in state
        return self.config(
            **own, **read_fields(FIELDS, args), **values[0],
            vocab_size=len(state[f"{self.stacks[0]}.embed_tokens.weight"]),
            embedding_scale="none" if args.get("no_scale_embedding", True) else "sqrt_width",
        )  # fmt: skip

    def mine(self, stack: str) -> str:
        return f"transformer.{stack}" if len(self.stacks) == 2 else stack

    def names(self, config: Any, state: State | None) -> Names:
        outer = "before" if "before" in config.row.self_attention else "after"
        names: dict[str, Any] = {"embedding.table": f"{self.stacks[0]}.embed_tokens"}
        if not getattr(config, "tie_embeddings", True):
            names["head"] = "decoder.output_projection"
        for stack in self.stacks:
            mine = self.mine(stack)
            table, biases = f"{mine}.position_embedding", f"{stack}.relative_position"
            names |= {
                f"{table}.table.weight": tensor(f"{stack}.embed_positions.weight", layout=FROM_TWO),
                f"{table}.bias": f"{biases}.relative_attention_bias",
                f"{mine}.input_norm": f"{stack}.layernorm_embedding",
                f"{mine}.final_norm": f"{stack}.layer_norm",
                **layers(f"{mine}.layers", f"{stack}.layers", fairseq_decoder_layer(outer)),
            }
        return names

    def computed(self, state: State, config: Any) -> State:
        table = fairseq_sinusoids(config.max_length, config.width, 2)
        return {
            f"{self.mine(stack)}.position_embedding.table.weight": table
            for stack in self.stacks if f"{stack}.embed_positions._float_tensor" in state
        }  # fmt: skip

    def write(self, config: Any) -> dict[str, Any]:
        row = config.row
        args: dict[str, Any] = {
            **write_fields(FIELDS, config), "subln": row.name == "sub",
            "deepnorm": row.name == "deepnorm", "vocab_size": config.vocab_size,
            "no_scale_embedding": config.embedding_scale == "none",
            "layernorm_embedding": config.input_norm == "layernorm",
        }  # fmt: skip
        if config.positions == "t5":
            args |= {"rel_pos_buckets": 32, "max_rel_pos": 128}
        for stack in self.stacks:
            args |= {
                f"{stack}_embed_dim": config.width, f"{stack}_attention_heads": config.heads,
                f"{stack}_ffn_embed_dim": config.ffn_width,
                f"{stack}_layers": config.depth(stack).layers,
                # Explicit, because deepnorm=True alone does not reset it for a decoder.
                f"{stack}_normalize_before": "before" in row.self_attention,
            }  # fmt: skip
        if self.stacks == ("encoder",):
            args["no_output_layer"] = True
        elif len(self.stacks) == 2:
            args["share_all_embeddings"] = True
        else:
            args["share_decoder_input_output_embed"] = config.tie_embeddings
        return args

    def finalise(self, state: State, config: Any) -> State:
        if "decoder" in self.stacks:
            table = state[f"{self.stacks[0]}.embed_tokens.weight"]
            state.setdefault("decoder.embed_tokens.weight", table)
            state.setdefault("decoder.output_projection.weight", table)
        if len(self.stacks) == 2:
            return state
        return {name.removeprefix(f"{self.stacks[0]}."): tensor for name, tensor in state.items()}


def _stack_names(state: Mapping[str, Tensor], args: Mapping[str, Any]) -> State:
    if any(name.startswith(("encoder.", "decoder.")) for name in state):
        return dict(state)
    stacks = [stack for stack in ("encoder", "decoder") if f"{stack}_attention_heads" in args]
    if len(stacks) != 1:
        raise ValueError("the weights could belong to an encoder or to a decoder. Give --config "
                         "FILE with encoder_attention_heads or "
                         "decoder_attention_heads.")  # fmt: skip
    return {f"{stacks[0]}.{name}": tensor for name, tensor in state.items()}


def _stack_values(state: State, stack: str, args: Mapping[str, Any]) -> dict[str, Any]:
    heads = args.get(f"{stack}_attention_heads")
    if not heads:
        raise ValueError("unknown number of heads. Give --config FILE with "
                         f"{stack}_attention_heads.")  # fmt: skip
    fc1 = state[f"{stack}.layers.0.ffn.fc1.weight"]
    positions, length = _positions(state, stack, args)
    numbers = [n.split(".")[2] for n in state if n.startswith(f"{stack}.layers.")]
    return {
        "layers": 1 + max(map(int, numbers)), "width": fc1.shape[1], "ffn_width": fc1.shape[0],
        "heads": heads,
        "placement": _placement(state, stack, args), "positions": positions, "max_length": length,
        "input_norm": "layernorm" if f"{stack}.layernorm_embedding.weight" in state else "none",
    }  # fmt: skip


def _placement(state: State, stack: str, args: Mapping[str, Any]) -> str:
    inner = f"{stack}.layers.0.self_attn.inner_attn_ln.weight" in state
    final = f"{stack}.layer_norm.weight" in state
    deepnorm = bool(args.get("deepnorm", False)) and not inner
    if inner and not final:
        raise ValueError(
            f"the {stack} uses Post-LN with Sub-LN's inner norms. Magneto has no such placement."
        )
    if deepnorm and final:
        raise ValueError(
            f"the {stack} uses Pre-LN with DeepNorm's alpha. Magneto has no such placement."
        )
    if inner:
        return "sub"
    if final:
        return "pre"
    return "deepnorm" if deepnorm else "post"


def _positions(state: State, stack: str, args: Mapping[str, Any]) -> tuple[str, int]:
    table = state.get(f"{stack}.embed_positions.weight")
    sinusoids = f"{stack}.embed_positions._float_tensor" in state
    biases = [name for name in state if name.endswith("relative_attention_bias.weight")]
    if any(name.startswith(f"{stack}.") for name in biases):
        shape = args.get("rel_pos_buckets", 32), args.get("max_rel_pos", 128)
        if stack == "decoder" or shape != (32, 128) or table is not None or sinusoids:
            raise ValueError(
                "torchscale's relative positions are supported only in an encoder without other "
                "positions. rel_pos_buckets must be 32, and max_rel_pos must be 128."
            )
        return "t5", 512
    if table is not None:
        return "learned", len(table) - 2
    if sinusoids:
        key = "max_source_positions" if stack == "encoder" else "max_target_positions"
        return "learned", args.get(key, 1024)
    return "none", 512


PREFIX = "beit3."
MASK_TOKEN = f"{PREFIX}vision_embed.mask_token"
CLASS_TOKEN = f"{PREFIX}vision_embed.cls_token"
POSITIONS = f"{PREFIX}encoder.embed_positions"
WORDS = f"{PREFIX}text_embed.weight"
PATCHES = f"{PREFIX}vision_embed.proj"
FINAL_NORM = f"{PREFIX}encoder.layer_norm"
BLOCKS = f"{PREFIX}encoder.layers"
EPSILON = 1e-5
"""Default epsilon of norms in torchscale and torch."""
BEIT3_FIELDS: Fields = {**FIELDS, "activation": activation("activation_fn")}


def layer_names(ours: str, letter: str, expert: str = "") -> Names:
    names = fairseq_layer("before", f"ffn.{letter}.", expert, f".{letter}")
    return layers(ours, BLOCKS, names)


class _Beit3(WeightFormat):
    """Format of a BEiT-3 model.

    `mark` is the name of a tensor by which the format is recognised. `head` has the names of
    tensors in the head. `normed` says whether the head has norms. `sizes` maps fields of the
    configuration to names of tensors, whose lengths are the fields' values.
    """

    name, placements = "beit3", ("sub",)
    # All of the authors' models have a mask token; only the pre-training model uses it.
    ignored = re.escape(MASK_TOKEN)
    otherwise = ("embedding_scale",)

    def __init__(
        self, mark: str, model: Any, config: Any, head: Names, sizes: Mapping[str, str],
        normed: bool = False,
    ) -> None:  # fmt: skip
        self.mark, self.model, self.config = mark, model, config
        self.head, self.sizes, self.normed = head, sizes, normed

    def fits(self, state: Mapping[str, Tensor], args: Mapping[str, Any]) -> bool:
        ours = any(re.match(r"(beit3\.)?vision_embed\.", name) for name in state)
        return ours and self.mark in {f"{PREFIX}{name}" for name in state} | state.keys()

    def normalise(self, state: State, args: Mapping[str, Any]) -> State:
        parts = ("text_embed.", "vision_embed.", "encoder.")
        return {
            f"{PREFIX}{name}" if name.startswith(parts) else name: tensor
            for name, tensor in state.items()
        }

    def read(self, state: State, args: Mapping[str, Any]) -> Any:
        width, channels, patch, _ = state[f"{PATCHES}.weight"].shape
        side = square(len(state[f"{POSITIONS}.A.weight"]) - 3)
        layers = [int(name.removeprefix(BLOCKS).split(".")[1]) for name in state if BLOCKS in name]
        heads, epsilon = args.get("encoder_attention_heads"), args.get("layernorm_eps", EPSILON)
        if self.normed and epsilon != EPSILON:
            raise ValueError(f"layernorm_eps must be {EPSILON:g} as in beit3's head, not "
                             f"{epsilon:g}")  # fmt: skip
        return self.config(
            width=width, layers=1 + max(layers), placement="sub",
            heads=head_count(width, {"num_heads": heads} if heads else {}),
            ffn_width=len(state[f"{BLOCKS}.0.ffn.A.fc1.weight"]),
            image_size=side * patch, patch_size=patch, channels=channels,
            **read_fields(BEIT3_FIELDS, args), **self.values(state),
            **{name: len(state[at]) for name, at in self.sizes.items()},
        )  # fmt: skip

    def values(self, state: State) -> dict[str, Any]:
        return {
            "vocab_size": len(state[WORDS]), "embedding_scale": "none",
            "max_length": len(state[f"{POSITIONS}.B.weight"]) - 2,
            "final_norm": "placement" if f"{FINAL_NORM}.A.weight" in state else "none",
        }  # fmt: skip

    def names(self, config: Any, state: State | None) -> Names:
        prefix = "" if self.model is VisionLanguageEncoder else "encoder."
        stack = f"{prefix}transformer"
        image, text = f"{prefix}vision_embedding", f"{prefix}text_embedding"
        return {
            **self.head,
            f"{image}.class_token.vector": tensor(CLASS_TOKEN, layout=TOKEN),
            f"{image}.positions.weight": tensor(f"{POSITIONS}.A.weight", layout=FROM_TWO),
            f"{text}.positions.weight": tensor(f"{POSITIONS}.B.weight", layout=FROM_TWO),
            f"{text}.words.table.weight": tensor(WORDS),
            f"{image}.patches.proj": PATCHES,
            f"{stack}.final_norm.vision": f"{FINAL_NORM}.A",
            f"{stack}.final_norm.language": f"{FINAL_NORM}.B",
            **layer_names(f"{stack}.layers", "A", ".experts.vision"),
            **layer_names(f"{stack}.layers", "B", ".experts.language"),
        }

    def write(self, config: Any) -> dict[str, Any]:
        return {
            "multiway": True, "layernorm_embedding": False, "no_output_layer": True,
            "normalize_output": getattr(config, "final_norm", "") == "placement",
            "encoder_embed_dim": config.width, "encoder_layers": config.layers,
            "encoder_attention_heads": config.heads, "encoder_ffn_embed_dim": config.ffn_width,
            **write_fields(BEIT3_FIELDS, config), "img_size": config.image_size,
            "patch_size": config.patch_size, "in_chans": config.channels,
            "vocab_size": getattr(config, "vocab_size", -1),
            "max_source_positions": config.max_length + 2,
        }  # fmt: skip

    def finalise(self, state: State, config: Any) -> State:
        if config.embedding_scale == "sqrt_width":  # theirs does not scale embeddings
            state[WORDS] = state[WORDS] * math.sqrt(config.width)
        return {MASK_TOKEN: torch.zeros(1, 1, config.width), **state}


class _Beit3Classifier(_Beit3):
    """Format of BEiT3ForImageClassification, without the language tensors."""

    ignored = r"\.B\.|(^|\.)text_embed|mask_token$|^language_head|^mlm_head"

    def values(self, state: State) -> dict[str, Any]:
        return {
            "class_token": "learned", "positions": "learned", "grid_positions": "none",
            "pooling": "mean_then_norm", "max_length": len(state[f"{POSITIONS}.A.weight"]) - 2,
        }  # fmt: skip

    def names(self, config: Any, state: State | None) -> Names:
        positions = tensor(f"{POSITIONS}.A.weight", layout=FROM_TWO)
        return {
            **self.head, "class_token.vector": tensor(CLASS_TOKEN, layout=TOKEN),
            "encoder.position_embedding.table.weight": positions, "embedding.proj": PATCHES,
            **layer_names("encoder.layers", "A"),
        }  # fmt: skip

    def finalise(self, state: State, config: Any) -> State:
        return state


FORMATS = (
    _Beit3Classifier(
        "fc_norm.weight", ImageClassifier, ImageClassifierConfig,
        {"pooled_norm": "fc_norm", "head": "head"}, {"classes": "head.weight"},
    ),
    _Beit3(
        "pooler.dense.weight", QuestionAnswerer, QuestionAnsweringConfig,
        {
            "pooler.0": "pooler.norm", "pooler.1": "pooler.dense", "head.0": "head.0",
            "head.1": "head.1", "head.3": "head.3",
        },
        {"answers": "head.3.bias"}, normed=True,
    ),
    _Beit3(
        "head.dense1.weight", VisualReasoner, VisualReasonerConfig,
        {
            "head.0": "head.norm1", "head.1": "head.dense1", "head.2": "head.norm2",
            "head.4": "head.dense2",
        },
        {}, normed=True,
    ),
    _Beit3(
        "vision_head.weight", ImageTextRetriever, ImageTextRetrieverConfig,
        {
            "vision_head": "vision_head", "language_head": "language_head",
            "scale.logarithm": tensor("logit_scale"),
        },
        {},
    ),
    _Beit3(
        "mim_head.weight", MaskedDataModel, MaskedDataModelConfig,
        {
            "patch_head": "mim_head", "word_head": "mlm_head",
            "encoder.vision_embedding.mask_token.vector": tensor(MASK_TOKEN, layout=TOKEN),
        },
        {"codes": "mim_head.bias"},
    ),
    _Beit3("mlm_head.weight", ImageCaptioner, ImageCaptionerConfig, {"word_head": "mlm_head"}, {}),
    _Beit3(f"{PATCHES}.weight", VisionLanguageEncoder, VisionLanguageConfig, {}, {}),
    _Torchscale(LanguageModel, LanguageModelConfig, "decoder"),
    _Torchscale(TextEncoder, TextEncoderConfig, "encoder"),
    _Torchscale(TranslationModel, TranslationConfig, "encoder", "decoder"),
)  # fmt: skip
"""Formats of weight files. Weights are read in the first format that fits."""


def write_fairseq_order(source: Path, target: Path, size: int) -> None:
    """Write BEiT-3's SentencePiece model (beit3.spm) with the pieces in fairseq's order.

    BEiT-3 and XLM-RoBERTa use this order: `<s>`, `<pad>`, `</s>`, `<unk>`, the file's pieces from
    the fourth on, and `<mask>`. Unused pieces are added until there are `size` pieces.
    """
    if not source.is_file():
        raise FileNotFoundError(f"no tokenizer {source}")
    name = "sentencepiece.sentencepiece_model_pb2"
    messages: Any = import_extra(name, "text", "this tokenizer needs the package sentencepiece")
    model = messages.ModelProto()
    try:
        model.ParseFromString(source.read_bytes())
    except Exception as error:  # protobuf's own exception
        raise ValueError(f"{source} is not a SentencePiece model") from error
    pieces = list(model.pieces)
    if not pieces:
        raise ValueError(f"{source} is not a SentencePiece model: it has no pieces")
    begins, expected = [piece.piece for piece in pieces[:3]], ["<unk>", "<s>", "</s>"]
    if begins != expected:
        raise ValueError(f"{source} is not BEiT-3's SentencePiece model: it begins with "
                         f"{', '.join(begins)}, not with {', '.join(expected)}")  # fmt: skip

    def control(word: str) -> Any:  # a piece that no text contains
        kind = messages.ModelProto.SentencePiece
        return kind(piece=word, score=0.0, type=kind.CONTROL)

    made = [control("<s>"), control("<pad>"), control("</s>"), pieces[0]]
    made += [*pieces[3:], control("<mask>")]
    if len(made) > size:
        raise ValueError(f"{source} has {len(made):,} pieces, <pad> and <mask> included, "
                         f"but the model's vocabulary size is {size:,}")  # fmt: skip
    made += [control(f"<unused{number}>") for number in range(size - len(made))]
    ordered = messages.ModelProto()
    ordered.CopyFrom(model)
    del ordered.pieces[:]
    ordered.pieces.extend(made)
    target.write_bytes(ordered.SerializeToString())
