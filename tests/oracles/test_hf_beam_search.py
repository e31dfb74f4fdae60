"""Beam search: equal to transformers' own on the same weights, and to exhaustive scoring."""

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import hf  # noqa: E402
from tests.oracles.hf_models import shaken, theirs  # noqa: E402

END, PAD = 0, 1
SIZES = {
    "vocab_size": 30, "bos_token_id": END, "eos_token_id": END, "pad_token_id": PAD,
    "decoder_start_token_id": PAD, "forced_eos_token_id": None, "d_model": 32,
    "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_position_embeddings": 40, "scale_embedding": True, "dropout": 0.0,
}  # fmt: skip
LEARNT = {
    "d_model": 16, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip
KINDS = {"Marian": "MarianMTModel", "Bart": "BartForConditionalGeneration"}


@cache
def taught(kind: str) -> Any:
    """One that has begun to learn: a token is followed by one of the next three, or by the end."""
    torch.manual_seed(4)
    config = getattr(transformers, f"{kind}Config")(**SIZES | LEARNT)
    model = getattr(transformers, KINDS[kind])(config)
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    random = torch.Generator().manual_seed(5)
    for _ in range(50):
        steps = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 16 * 12, True, generator=random)
        source = torch.randint(2, 30, (16, 5), generator=random)
        labels = 2 + (source[:, :1] + (steps.view(16, 12) + 1).cumsum(1)) % 28
        ends = torch.rand((16, 12), generator=random) < 0.15
        labels = labels.masked_fill(ends, END)
        labels = labels.masked_fill(ends.cumsum(1) - ends.long() > 0, -100)
        loss = model(source, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def converted(model: Any) -> "hf.MagnetoForSeq2SeqLM":
    core: Any = hf.load(model)
    names = ("pad_token_id", "decoder_start_token_id")
    values = {name: getattr(model.config, name) for name in names}
    return hf.MagnetoForSeq2SeqLM(hf.MagnetoSeq2SeqConfig.of(core.config, END, **values), core)


def sentences(count: int, vocabulary: int = 30, seed: int = 1000) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 24, (count,), generator=random).tolist()
    draw = (torch.randint(2, vocabulary, (length,), generator=random) for length in lengths)
    return [[*tokens.tolist(), END] for tokens in draw]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 5])
def test_every_hypothesis_is_that_of_transformers_own_model(kind: str, beams: int) -> None:
    other = taught(kind)
    ours = converted(other)
    sources = sentences(12)
    how = hf.BeamSearch(beams=beams, count=beams, longest=20, batch_size=5)
    assert how.length_penalty == 1, "fairseq's, unless another is given"
    found = hf.Translator(ours, how).search(sources)
    assert found == hf.Translator(other, how).search(sources)
    lengths = {len(tokens) for some in found for tokens in some}
    assert len(lengths) >= 5, "the model ends everywhere alike: nothing is tested"
    assert all(len(set(map(tuple, some))) == beams for some in found)


@pytest.mark.parametrize(("kind", "early"), [("Marian", True), ("Bart", False), ("Bart", "never")])
def test_plain_generate_gives_the_same_tokens_and_scores(kind: str, early: bool | str) -> None:
    other = taught(kind)
    ours: Any = converted(other)
    tokens = torch.tensor([s[:2] + s[-1:] for s in sentences(6)])
    settings: dict[str, Any] = {
        "num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 12, "early_stopping": early,
        "length_penalty": 0.6, "output_scores": True, "return_dict_in_generate": True,
    }  # fmt: skip
    a, b = other.generate(tokens, **settings), ours.generate(tokens, **settings)
    assert torch.equal(a.sequences, b.sequences)
    torch.testing.assert_close(a.sequences_scores, b.sequences_scores, atol=1e-5, rtol=0)


def exhaustive(model: Any, source: list[int], longest: int, power: float) -> list[Any]:
    """Score every translation of at most so many tokens; best first."""
    core, made = model.core, []
    letters = [t for t in range(core.config.vocab_size) if t not in (END, PAD)]
    for length in range(1, longest + 1):
        bodies = [list(body) for body in product(letters, repeat=length)]
        written = torch.tensor([[PAD, *body] for body in bodies])
        logits = core(torch.tensor([source] * len(bodies)), written)
        asked = torch.tensor([[*body, END] for body in bodies])
        steps = logits.log_softmax(-1).gather(2, asked[..., None])
        scores = steps.sum((1, 2)) / (length + 1) ** power
        made += zip(scores.tolist(), bodies, strict=True)
    return sorted(made, reverse=True)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
@torch.no_grad()
def test_a_beam_that_holds_everything_ranks_as_exhaustive_scoring_does(power: float) -> None:
    """The length counts the end; at the limit, too, the end is written and paid for."""
    model = converted(shaken(theirs("MarianMTModel", **SIZES | {"vocab_size": 6})))
    source = [3, 4, 2, END]
    expected = exhaustive(model, source, 3, power)
    everything = len(expected)
    assert everything == 4 + 16 + 64
    how = hf.BeamSearch(beams=everything, count=everything, length_penalty=power, longest=3)
    translator = hf.Translator(model, how)
    found = translator.search([source])
    assert found[0] == [body for _, body in expected]
    scores = translator.score([source], found)
    assert scores[0] == pytest.approx([score for score, _ in expected], abs=1e-5)
    assert len({len(body) for body in found[0][:20]}) > 1


def test_batches_change_nothing_and_order_is_kept() -> None:
    model = converted(taught("Marian"))
    sources = sentences(9)
    done: list[int] = []
    one_by_one = hf.Translator(model, hf.BeamSearch(longest=15, batch_size=1))
    alone = one_by_one.search(sources)
    together = hf.Translator(model, hf.BeamSearch(longest=15, batch_size=4))
    assert together.search(sources, done.append) == alone
    assert done == [4, 8, 9]
    assert together.search(sources[::-1]) == alone[::-1]
    assert together.search([]) == []
    some = [[*found, found[0][:2]] for found in alone]
    both = [translator.score(sources, some) for translator in (together, one_by_one)]
    for scores, expected in zip(*both, strict=True):
        assert scores == pytest.approx(expected, abs=1e-5)


def test_settings_that_make_no_sense_are_named_at_once() -> None:
    for wrong, words in (
        ({"longest": 0}, "longest must be 1 to"),
        ({"beams": 3, "count": 4}, r"count \(4\) must be at most beams"),
    ):
        with pytest.raises(ValueError, match=words):
            hf.BeamSearch(**wrong)
