"""Encoder-decoder models in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from tests.unit.hf.kinds import wrapped  # noqa: E402
from tests.unit.nn.grids import shaken  # noqa: E402

IDS = torch.randint(1, 300, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(2, 9, dtype=torch.long)
MASK[1, -3:] = 0


def translator(**changes: Any) -> Any:
    """Return a model whose translations vary."""
    sizes = {"width": 32, "heads": 4, "vocab_size": 300, "encoder_layers": 2, "decoder_layers": 3}
    return shaken(wrapped("MagnetoForSeq2SeqLM", **sizes, **changes), 0.3)


@pytest.mark.parametrize(
    ("positions", "beams", "kind"),
    [("sinusoidal", 1, None), ("learned", 3, None), ("rotary", 3, "static"), ("t5", 1, "static")],
)  # fmt: skip
def test_generation_with_cache_equals_without(positions: str, beams: int, kind: str | None) -> None:
    """Padding of the source changes no translation."""
    model = translator(positions=positions)
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "num_beams": beams}
    how["no_repeat_ngram_size"] = 2  # a model with tied weights tends to repeat tokens
    written = model.generate(IDS, attention_mask=MASK, cache_implementation=kind, **how)
    without = model.generate(IDS, attention_mask=MASK, use_cache=False, **how)
    assert torch.equal(written, without) and written.unique().numel() > 6
    alone = model.generate(IDS[1:, :6], **how)[0]
    assert torch.equal(alone, written[1, : len(alone)])


def test_the_cache_has_its_name_before_transformers_5_24_too() -> None:
    model, target = translator(), IDS[:, :4]
    whole = model(IDS, decoder_input_ids=target).logits
    for name in ("cache", "past_key_values"):
        first = model(IDS, decoder_input_ids=target[:, :3], use_cache=True)
        held = {name: first.cache}
        last = model(IDS, decoder_input_ids=target[:, 3:], **held).logits
        assert (last - whole[:, 3:]).abs().max() <= 1e-4


def test_padding_of_the_target_changes_no_logits() -> None:
    model, target = translator(), IDS[:, :4]
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    found = model(IDS, decoder_input_ids=target, decoder_attention_mask=mask).logits
    alone = model(IDS[1:], decoder_input_ids=target[1:, 2:]).logits
    assert (found[1:, 2:] - alone).abs().max() <= 1e-4


def test_loss_and_decoder_inputs() -> None:
    model = translator(pad_token_id=7)
    labels = IDS[:, :5].clone()
    labels[0, -2:] = -100
    read = model.prepare_decoder_input_ids_from_labels(labels)
    assert read[:, 0].tolist() == [0, 0]
    assert translator(bos_token_id=3, eos_token_id=4).config.decoder_start_token_id == 3
    assert torch.equal(read[1, 1:], labels[1, :-1]) and read[0, -1] == 7
    output = model(IDS, labels=labels, output_hidden_states=True)
    assert len(output.encoder_hidden_states) == 3 and len(output.decoder_hidden_states) == 4
    memory = output.encoder_hidden_states[-1]
    assert torch.equal(memory, model.core.encode(IDS))
    with pytest.raises(ValueError, match="decoder_input_ids or labels"):
        model(IDS)
    model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match="need decoder_start_token_id"):
        model(IDS, labels=labels)


def test_translations_may_be_as_long_as_the_positions(tmp_path: Path) -> None:
    model = wrapped("MagnetoForSeq2SeqLM", max_length=33, positions="learned")
    model.save_pretrained(tmp_path)
    loaded: Any = hf.MagnetoForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.generate(IDS[:, :7] % 40, do_sample=False, eos_token_id=None).shape == (2, 33)
