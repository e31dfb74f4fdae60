"""timm's BEiT and BEiT v2 against timm's own class."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto.hf.weights.timm import BEIT, FORMATS
from tests.hf.weights.test_timm_vit import small
from tests.hf.weights.timm_models import (
    HEADS,
    check_same_answers,
    check_there_and_back,
    timm_model,
)

SHARED = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BEiT": ("beit_base_patch16_224", {}),
    "BEiT v2": ("beitv2_base_patch16_224", {}),
    "shared positions": ("beit_base_patch16_224", SHARED),
    "class token": ("beit_base_patch16_224", {"global_pool": "token", "use_abs_pos_emb": True}),
}


@pytest.mark.parametrize("name", MODELS)
def test_timms_own_class_computes_the_same(name: str, tmp_path: Path) -> None:
    architecture, changes = MODELS[name]
    theirs = timm_model(architecture, **changes)
    assert FORMATS["timm_beit"].fits(theirs.state_dict())
    ours = BEIT.load(theirs.state_dict(), HEADS | {"init_values": 0.1})
    check_same_answers(theirs, ours)
    check_there_and_back(theirs, ours, "timm_beit", tmp_path)


def test_what_does_not_fit_is_named() -> None:
    given: dict[str, Any] = {"placement": "pre", "norm_eps": 1e-6, "unbiased": ("k",)}
    given["grid_positions"] = "relative_bias"
    state, held = BEIT.save(small(**given))
    again = BEIT.load(state, held["model_args"]).config
    assert again == small(**given).config
    table = "blocks.0.attn.relative_position_bias_table"
    del state["pos_embed"]
    with pytest.raises(ValueError, match="of no square image"):
        BEIT.load(state | {table: torch.ones(13, 4)}, HEADS)
    with pytest.raises(ValueError, match="each layer and shared ones"):
        BEIT.load(state | {"rel_pos_bias.relative_position_bias_table": state[table]}, HEADS)
    for changes, words in [
        ({"placement": "sub"}, "placement is 'sub' here, 'pre' there"),
        ({"norm_eps": 1e-5}, "norm_eps is 1e-05 here, 1e-06 there"),
        ({"unbiased": ()}, r"unbiased is \(\) here"),
        ({"activation": "relu"}, "activation is 'relu' here"),
        ({"grid_positions": "rotary"}, "grid_positions is 'rotary' here"),
        ({"class_token": "none"}, "class_token is 'none' here"),
    ]:
        with pytest.raises(ValueError, match=words):
            BEIT.save(small(**{**given, **changes}))
