"""Gemma 2 against transformers' own class: windows in turn, capped logits, norms of 1 + weight."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from magneto import hf
from magneto.hf.formats.gemma2 import windows
from tests.hf.formats.test_llama import build, check_both_ways

OWN: dict[str, Any] = {
    "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 3, "attn_logit_softcapping": 0.7,
    "final_logit_softcapping": 2.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention"] * 3, "tie_word_embeddings": False},
    ],
    ids=str,
)
def test_transformers_own_class_computes_the_same(changes: dict, tmp_path: Path) -> None:
    ours = check_both_ways(build("Gemma2", **OWN | changes), tmp_path)
    assert ours.config.row.name == "peri" and ours.config.activation == "geglu_tanh"


def test_there_and_back_but_for_the_ones_of_norms() -> None:
    theirs = build("Gemma2", **OWN)
    expected = theirs.state_dict()
    found = hf.to_transformers(hf.load(theirs), "gemma2").state_dict()
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.allclose(found[key], tensor, rtol=0, atol=2e-7), key
        assert "norm" in key or torch.equal(found[key], tensor), key


def test_windows_are_told_in_one_turn() -> None:
    near, far = "sliding_attention", "full_attention"
    assert windows([near, far] * 3, 8) == (8, None)
    assert windows([near, near, far, near], 8) == (8, 8, None)
    assert windows([near] * 4, 8) == (8,) and windows([far] * 4, 8) == ()


def test_what_has_no_counterpart_is_named() -> None:
    for changes, words in [
        ({"query_pre_attn_scalar": 9}, "query_pre_attn_scalar=9 has no counterpart"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ]:
        with pytest.raises(ValueError, match=words):
            hf.load(build("Gemma2", **OWN | changes))
