"""Our language model inside transformers: the same numbers, and everything that comes for free."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import PLACEMENTS, Placement, hf  # noqa: E402
from magneto.data.tokenizer import load_tokenizer, train_bpe  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402

SETTINGS = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "vocab_size": 300}
TEXT = "A function that returns the number of bytes in a file, or raises an error if it is closed. "


def core(**changes) -> LanguageModel:
    torch.manual_seed(0)
    values = {**SETTINGS, "positions": "sinusoidal", **changes}
    return LanguageModel(LanguageModelConfig(**values)).eval()


def talker(**changes) -> "hf.MagnetoForCausalLM":
    """A wrapped model whose continuations vary; a fresh one with tied weights repeats itself."""
    model = core(tie_embeddings=False, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return wrap(model)


def wrap(model: LanguageModel) -> "hf.MagnetoForCausalLM":
    return hf.MagnetoForCausalLM(hf.MagnetoConfig.of(model.config, end=0), model).eval()


def ids(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(1, 300, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_bpe([TEXT * 3], 300, path)
    return load_tokenizer(path)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_our_initialisation_survives(placement: str) -> None:
    """transformers' own would replace it: `post_init` re-initialises unless it is told not to."""
    model = core(placement=placement)
    torch.manual_seed(0)
    wrapped = hf.MagnetoForCausalLM(hf.MagnetoConfig.of(model.config))
    state = wrapped.core.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("positions", "tied"),
    [("sinusoidal", True), ("learned", False), ("rotary", True), ("t5", False)],
)
def test_round_trip(tmp_path: Path, tied: bool, positions: str) -> None:
    hf.register()
    model = core(tie_embeddings=tied, positions=positions)
    wrap(model).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids()).logits, model(ids()))
    assert (loaded.core.head.weight is loaded.core.embedding.table.weight) == tied


@pytest.mark.parametrize(
    ("positions", "how"),
    [("sinusoidal", {}), ("learned", {"num_beams": 3}), ("rotary", {"num_beams": 3}), ("t5", {}),
     ("t5", {"num_beams": 3})],
)  # fmt: skip
def test_generation_with_cache_equals_without(positions: str, how: dict) -> None:
    wrapped = talker(positions=positions, key_value_heads=2)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    results = [
        wrapped.generate(ids(), attention_mask=mask, max_new_tokens=12, use_cache=use, **how)
        for use in (True, False)
    ]
    assert torch.equal(*results)
    assert results[0][:, 9:].unique().numel() > 6


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "t5"])
def test_a_static_cache_gives_the_same(positions: str) -> None:
    wrapped = talker(positions=positions)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    static = wrapped.generate(ids(), cache_implementation="static", **settings)
    assert torch.equal(static, wrapped.generate(ids(), use_cache=False, **settings))


def test_a_gpu_compiles_no_static_cache_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would, and our decoder would be recorded anew for every token."""
    # They set it for good where they would compile.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    wrapped = talker()
    monkeypatch.setattr(type(wrapped), "device", torch.device("cuda"))
    cache = transformers.StaticCache(config=wrapped.config, max_cache_len=12)
    settings = transformers.GenerationConfig()
    assert not wrapped._valid_auto_compile_criteria({"past_key_values": cache}, settings)
    settings.compile_config = transformers.CompileConfig()
    assert wrapped._valid_auto_compile_criteria({"past_key_values": cache}, settings)


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
def test_reading_in_parts_equals_reading_at_once(kind: str) -> None:
    wrapped = wrap(core(positions="rotary", key_value_heads=2))
    settings = {"max_cache_len": 12} if kind == "StaticCache" else {}
    cache = getattr(transformers, kind)(config=wrapped.config, **settings)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :2] = 0
    parts = [
        wrapped(ids()[:, a:b], attention_mask=mask[:, :b], past_key_values=cache).logits
        for a, b in ((0, 4), (4, 5), (5, 9))
    ]
    whole = wrapped(ids(), attention_mask=mask).logits
    real = mask.bool()
    assert (torch.cat(parts, 1) - whole)[real].abs().max() <= 1e-5
    last = wrapped(ids(), attention_mask=mask, logits_to_keep=2).logits
    assert (last - whole[:, -2:]).abs().max() <= 1e-6


def test_speculative_decoding_equals_greedy() -> None:
    """It shortens the cache again where a guess was wrong."""
    wrapped = talker()
    prompt = ids(rows=1).repeat(1, 3)
    settings = {"max_new_tokens": 12, "do_sample": False}
    guessed = wrapped.generate(prompt, prompt_lookup_num_tokens=3, **settings)
    assert torch.equal(guessed, wrapped.generate(prompt, **settings))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "t5"])
def test_padding_on_the_left_changes_no_continuation(positions: str) -> None:
    wrapped = talker(positions=positions)
    short = ids(rows=1, length=5)
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), short), 1)
    mask = (torch.arange(9) >= 4).long()[None]
    alone = wrapped.generate(short, max_new_tokens=8, do_sample=False)
    beside = wrapped.generate(padded, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert torch.equal(alone[:, 5:], beside[:, 9:])
    logits = wrapped(padded, attention_mask=mask).logits[:, 4:]
    assert (logits - wrapped(short).logits).abs().max() <= 1e-4


def test_loss_is_transformers_own() -> None:
    model = core(loss_chunk=4)
    labels = ids()
    labels[1, -3:] = -100
    output = wrap(model)(ids(), labels=labels)
    expected = torch.nn.functional.cross_entropy(
        model(ids())[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    counted = wrap(model)(ids(), labels=labels, num_items_in_batch=torch.tensor(26))
    assert counted.loss.item() == pytest.approx(expected.item() * 13 / 26, rel=1e-5)
    nothing = wrap(model)(ids(), labels=torch.full_like(labels, -100))
    assert nothing.loss.item() == 0


def test_a_vocabulary_that_grew_survives_saving(tmp_path: Path) -> None:
    wrapped = wrap(core())
    wrapped.resize_token_embeddings(310, mean_resizing=False)
    wrapped.save_pretrained(tmp_path)
    loaded = hf.MagnetoForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.core.config.vocab_size == 310
    assert torch.equal(loaded(ids()).logits, wrapped(ids()).logits)


def test_loads_in_bfloat16(tmp_path: Path) -> None:
    wrap(core(positions="rotary")).save_pretrained(tmp_path)
    loaded = hf.MagnetoForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    logits = loaded(ids()).logits
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()


def test_arguments_without_a_place_are_refused() -> None:
    wrapped = wrap(core())
    # The positions that a text has anyhow change nothing.
    same = wrapped(ids(), position_ids=torch.arange(ids().shape[1])[None]).logits
    torch.testing.assert_close(same, wrapped(ids()).logits)
    with pytest.raises(ValueError, match="position_ids is"):
        wrapped(ids(), position_ids=torch.arange(ids().shape[1] + 1)[None])
    for name in ("head_mask", "cu_seq_lens_q"):
        with pytest.raises(ValueError, match=f"{name} cannot be given"):
            wrapped(ids(), **{name: torch.zeros(2)})
    row = Placement(name="mine", title="", source="", self_attention=("branch",))
    with pytest.raises(ValueError, match="no placement 'mine'"):
        wrap(core(placement=row))


def test_export_and_pipeline(tmp_path: Path, tokenizer) -> None:
    model = core(vocab_size=tokenizer.vocab_size)
    directory = tmp_path / "exported"
    hf.export_text(model, tokenizer, directory, 64)
    hf.register()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    words = transformers.AutoTokenizer.from_pretrained(directory)
    encoded = words("A function", return_tensors="pt")["input_ids"]
    assert encoded.tolist() == tokenizer.encode(["A function"])
    assert torch.equal(loaded(encoded).logits, model(encoded))
    pipe = transformers.pipeline("text-generation", model=str(directory))
    assert pipe("A function", max_new_tokens=4)[0]["generated_text"].startswith("A function")
    with pytest.raises(FileExistsError):
        hf.export_text(model, tokenizer, directory, 64)
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


def test_generate(tokenizer) -> None:
    model = core(vocab_size=tokenizer.vocab_size)
    sampled = hf.generate(model, tokenizer, "A function", hf.Sampling(new_tokens=5, count=2))
    again = hf.generate(model, tokenizer, "A function", hf.Sampling(new_tokens=5, count=2))
    assert sampled == again and len(sampled) == 2
    assert all(text.startswith("A function") for text in sampled)
    other = hf.generate(model, tokenizer, "A function", hf.Sampling(new_tokens=5, count=2, seed=1))
    assert other != sampled
    beams = hf.generate(model, tokenizer, "", hf.Sampling(new_tokens=5, beams=3, count=2))
    assert len(beams) == 2
    greedy = hf.generate(model, tokenizer, "A function", hf.Sampling(new_tokens=5, temperature=0))
    sharp = hf.Sampling(new_tokens=5, top_k=1, seed=7)
    assert greedy == hf.generate(model, tokenizer, "A function", sharp)


def test_generate_leaves_the_random_state_alone(tokenizer) -> None:
    model = core(vocab_size=tokenizer.vocab_size)
    before = torch.get_rng_state()
    hf.generate(model, tokenizer, "A function", hf.Sampling(new_tokens=5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"beams": 2, "count": 3}, "at most as many"),
        ({"temperature": 0, "count": 2}, "one continuation"),
        ({"temperature": -1.0, "top_p": 0.0}, "temperature must not.*\ntop_p must be above 0"),
        ({"new_tokens": 0}, "new_tokens must be 1 or more"),
        ({"top_k": -1}, "top_k"),
    ],
)
def test_impossible_sampling(values: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hf.Sampling(**values)
