"""What timm's image classifiers have in common: their arguments, sizes and files.

A file of weights says most of what its model is; the rest are arguments by timm's names: those of
the config.json beside the weights (`architecture`, `model_args`), or given by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from magneto.hf.formats.layout import (
    Pair,
    State,
    as_row,
    fill,
    first,
    module,
    one,
    read_state,
    squeezed,
)
from magneto.vision.classifier import ImageClassifier
from magneto.vision.config import ImageClassifierConfig

# Heads of those widths at which timm's models have heads of another width than 64.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
HEAD_WIDTH = 64
POSITIONS = "encoder.position_embedding.table.weight"
# Weights' names do not show that these compute something else.
UNREAD = ("quickgelu", "siglip")


def timm_arguments(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that timm's config.json has, `architecture` and `num_classes` too."""
    names = ("architecture", "global_pool")
    return {name: held[name] for name in names if name in held} | dict(held.get("model_args", {}))


def check_arguments(args: Mapping[str, Any], **wanted: Any) -> None:
    """Check that arguments are those that have a counterpart here.

    Raises:
        ValueError: For another value; names it.
    """
    architecture = str(args.get("architecture", ""))
    if any(word in architecture for word in UNREAD):
        raise ValueError(f"timm's {architecture} has no counterpart here")
    for name, value in wanted.items():
        if args.get(name, value) != value:
            raise ValueError(f"timm's model with {name}={args[name]!r} has no counterpart here "
                             f"(only {value!r})")  # fmt: skip


def head_count(width: int, args: Mapping[str, Any]) -> int:
    """Return the number of attention's heads, which no tensor shows.

    Raises:
        ValueError: If it is not given, and none of timm's models is so wide.
    """
    if "num_heads" in args:
        return int(args["num_heads"])
    if width not in HEADS and width % HEAD_WIDTH:
        raise ValueError(f"say how many heads a model of width {width} has: "
                         '--config FILE with {"num_heads": 4}')  # fmt: skip
    return HEADS.get(width, width // HEAD_WIDTH)


def table_side(state: State, args: Mapping[str, Any], patch: int) -> int:
    """Return how many patches an image is high and wide.

    Raises:
        ValueError: If that can't be seen, or the image is not square.
    """
    if "pos_embed" in state:
        length = state["pos_embed"].shape[1]
        patches = length - ("cls_token" in state)
        if patches <= 0 or math.isqrt(patches) ** 2 != patches:
            raise ValueError(f"{patches} patches are no square image")
        return math.isqrt(patches)
    table = next((t for n, t in state.items() if n.endswith("relative_position_bias_table")), None)
    if table is not None:
        side = (math.isqrt(len(table) - 3) + 1) // 2
        if (2 * side - 1) ** 2 + 3 != len(table):
            raise ValueError("a table of relative positions of no square image")
        return side
    if "img_size" not in args:
        raise ValueError('say how large an image is: --config FILE with {"img_size": 224}')
    return int(args["img_size"]) // patch


def shape(state: State, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of our configuration that all of timm's models show alike.

    Raises:
        ValueError: If there is no classifier, or a size can't be seen.
    """
    if "head.weight" not in state:
        raise ValueError("these weights have no classifier (head.weight): convert those of image "
                         "classification")  # fmt: skip
    if "dist_token" in state:
        raise ValueError("a distillation token (dist_token) has no counterpart here")
    if "norm.weight" in state and "fc_norm.weight" in state:
        raise ValueError("a norm before pooling and one after have no counterpart here")
    width, channels, patch, _ = state["patch_embed.proj.weight"].shape
    side = table_side(state, args, patch)
    token = "learned" if "cls_token" in state else "none"
    scaled = any(name.endswith(("ls1.gamma", "gamma_1")) for name in state)
    pooling = "mean" if token == "none" or args.get("global_pool") == "avg" else "first"
    blocks = [int(name.split(".")[1]) for name in state if name.startswith("blocks.")]
    return {
        "width": width, "layers": 1 + max(blocks), "heads": head_count(width, args),
        "ffn_width": state["blocks.0.mlp.fc2.weight"].shape[1], "channels": channels,
        "image_size": side * patch, "patch_size": patch, "classes": len(state["head.weight"]),
        "class_token": token, "pooling": "mean_then_norm" if "fc_norm.weight" in state else pooling,
        "positions": "learned" if "pos_embed" in state else "none",
        "max_length": side**2 + ("cls_token" in state),
        "layer_scale": float(args.get("init_values") or 1e-5) if scaled else None,
    }  # fmt: skip


def placement(state: State) -> str:
    """Return the row of the placement table, by the norms that a block has.

    Raises:
        ValueError: If no row has them.
    """
    inside = "blocks.0.attn.norm.weight" in state, "blocks.0.mlp.norm.weight" in state
    rows = {(False, False): "pre", (False, True): "eva02", (True, True): "sub"}
    if inside not in rows:
        raise ValueError("a norm inside attention alone has no counterpart here")
    return rows[inside]


def arguments(config: ImageClassifierConfig) -> dict[str, Any]:
    """Return the arguments that all of timm's models take."""
    ratio = config.ffn_width / config.width
    if int(config.width * ratio) != config.ffn_width:  # timm rounds down
        ratio = (config.ffn_width + 0.5) / config.width
    return {
        "img_size": config.image_size, "patch_size": config.patch_size, "in_chans": config.channels,
        "num_classes": config.classes, "embed_dim": config.width, "depth": config.layers,
        "num_heads": config.heads, "mlp_ratio": ratio, "init_values": config.layer_scale,
        "global_pool": "token" if config.pooling == "first" else "avg",
    }  # fmt: skip


def pairs(config: ImageClassifierConfig) -> list[Pair]:
    """Return which tensor is which, of all but the layers."""
    return [
        Pair("class_token.vector", ("cls_token",), squeezed, as_row),
        Pair(POSITIONS, ("pos_embed",), first, one),
        *module("embedding.proj", "patch_embed.proj"),
        *module("pooled_norm", "fc_norm"),
        *module("encoder.final_norm", "norm"),
        *module("head", "head"),
    ]


def layer_pairs(mine: str, their: str) -> list[Pair]:
    """Return which tensor is which of a layer, of all but the queries, keys, values and scales."""
    names = {
        "self_attention.before": "norm1",
        "self_attention.attention.inside": "attn.norm",
        "self_attention.attention.out_proj": "attn.proj",
        "feed_forward.before": "norm2",
        "feed_forward.mlp.fc1": "mlp.fc1",
        "feed_forward.mlp.inside": "mlp.norm",
        "feed_forward.mlp.fc2": "mlp.fc2",
    }
    return [
        pair
        for name, other in names.items()
        for pair in module(f"{mine}.{name}", f"{their}.{other}")
    ]


def scale_pairs(mine: str, *theirs: str) -> list[Pair]:
    """Return LayerScale's two tensors of a layer."""
    kinds = ("self_attention", "feed_forward")
    return [
        Pair(f"{mine}.{kind}.layer_scale.weight", (name,))
        for kind, name in zip(kinds, theirs, strict=True)
    ]


def in_float32(state: Mapping[str, Tensor]) -> State:
    """Return copies of tensors in single precision."""
    return {name: tensor.detach().clone().float() for name, tensor in state.items()}


def read(config: ImageClassifierConfig, pairs: list[Pair], state: State) -> ImageClassifier:
    """Return the model that a state's tensors make, in evaluation mode.

    Raises:
        ValueError: If one is missing, has another shape, or no place here.
    """
    model = ImageClassifier(config)
    fill(model, read_state(pairs, state))
    return model.eval()


def classifier_config(model: nn.Module, name: str) -> ImageClassifierConfig:
    """Return the configuration of an image classifier.

    Raises:
        ValueError: If the model is none, or timm can't have its norms' epsilon.
    """
    if not isinstance(model, ImageClassifier):
        raise ValueError(f"{name} has no counterpart of a {type(model).__name__}")
    return model.config


def check_fields(config: ImageClassifierConfig, name: str, **allowed: tuple[str, ...]) -> None:
    """Check that a model's options are among those that a format has.

    Raises:
        ValueError: For the first that is not.
    """
    for field, values in allowed.items():
        if (found := getattr(config, field)) not in values:
            raise ValueError(f"{name} cannot hold this model: {field} is {found!r} here, "
                             f"{' or '.join(map(repr, values))} there")  # fmt: skip


def timm_config(
    config: ImageClassifierConfig, name: str, known: Mapping[float, str], args: dict[str, Any]
) -> dict[str, Any]:
    """Return what timm's config.json holds: `timm.create_model("local-dir:DIR", pretrained=True)`.

    Args:
        config: Of our model.
        name: Of the format, for the error.
        known: Architectures by the epsilon of their norms, which is no argument; the rest is.
        args: All other arguments.

    Raises:
        ValueError: If no architecture has norms of the model's epsilon.
    """
    if config.norm_eps not in known:
        there = " or ".join(map(str, known))
        raise ValueError(f"{name} cannot hold this model: norm_eps is {config.norm_eps} here, "
                         f"{there} there")  # fmt: skip
    return {
        "architecture": known[config.norm_eps], "num_classes": config.classes,
        "num_features": config.width, "global_pool": args["global_pool"], "model_args": args,
        "pretrained_cfg": {
            "input_size": [config.channels, config.image_size, config.image_size],
            "num_classes": config.classes, "fixed_input_size": True,
            "first_conv": "patch_embed.proj", "classifier": "head",
        },
    }  # fmt: skip
