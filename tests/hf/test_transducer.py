"""An exported recogniser loads in a new process, with its features and its tokenizer."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("jiwer")
pytest.importorskip("transformers")

from magneto.cli import main
from magneto.hf import (
    MagnetoForTransducer,
    MagnetoSpeechFeatureExtractor,
    MagnetoTransducerConfig,
)
from magneto.runs import load_run
from magneto.speech.decoding import GreedySearch
from magneto.speech.features import SpeechFeatures
from tests.hf.conftest import Newcomer
from tests.speech.small_run import train_small

SCRIPT = """
import sys, numpy as np, torch
from transformers import AutoFeatureExtractor, AutoModel, AutoTokenizer
place = sys.argv[1]
trusted = {"trust_remote_code": True}
model = AutoModel.from_pretrained(place, **trusted).eval()
extractor = AutoFeatureExtractor.from_pretrained(place, **trusted)
tokenizer = AutoTokenizer.from_pretrained(place, **trusted)
sounds = list(np.load(sys.argv[2]).values())
given = extractor(sounds, sampling_rate=8000, return_tensors="pt")
features = model(**given).last_hidden_state
texts = tokenizer.batch_decode(model.transcribe(**given))
np.savez(sys.argv[3], *[texts, features.detach().numpy()])
"""


def test_a_mask_of_another_shape_is_refused() -> None:
    sizes = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 24, "vocab_size": 20}
    model = MagnetoForTransducer(MagnetoTransducerConfig(**sizes)).eval()
    sound = torch.randn(2, 40, 80)
    assert model(sound, attention_mask=torch.ones(2, 40)).last_hidden_state.shape[0] == 2
    for shape in ((1, 40), (2, 39), (2, 1), (40,)):
        for read in (model, model.transcribe):
            with pytest.raises(ValueError, match=r"attention mask is \(.*\), not \(2, 40\)"):
                read(sound, attention_mask=torch.ones(shape))


@torch.no_grad()
def test_weights_in_bfloat16_take_what_the_extractor_makes() -> None:
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 24, "vocab_size": 20}
    model = MagnetoForTransducer(MagnetoTransducerConfig(**sizes)).eval()
    sound = torch.randn(2, 40, 80)
    expected = model(sound).last_hidden_state
    found = model.bfloat16()(sound).last_hidden_state
    assert (found.float() - expected).abs().max() <= 0.05 * expected.abs().max()
    assert len(model.transcribe(sound)) == 2


def test_a_new_process_hears_the_same(tmp_path: Path, newcomer: Newcomer) -> None:
    run = train_small(tmp_path / "run")
    assert main(["export", str(run), str(tmp_path / "hf")]) == 0
    random = np.random.default_rng(0)
    sounds = [random.standard_normal(n).astype(np.float32) for n in (8000, 5000)]
    np.savez(tmp_path / "sounds.npz", *sounds)
    files = [str(tmp_path / name) for name in ("hf", "sounds.npz", "found.npz")]
    newcomer.run(tmp_path, SCRIPT, *files)
    found = np.load(tmp_path / "found.npz")
    opened = load_run(run, "auto", {})
    features = SpeechFeatures(opened.recipe.data)
    for row, sound in enumerate(sounds):
        heard = torch.from_numpy(features(sound))[None]
        with torch.no_grad():
            encoded, lengths = opened.model.encode(heard, torch.tensor([heard.shape[1]]))
            labels = GreedySearch()(opened.model, encoded, lengths)[0][0].labels
        count = int(lengths[0])
        np.testing.assert_allclose(found["arr_1"][row, :count], encoded[0].numpy(), atol=1e-4)
        assert found["arr_0"][row].split() == opened.task.vocabulary.decode(labels).split()


def test_another_sample_rate_is_refused() -> None:
    extractor = MagnetoSpeechFeatureExtractor(8000)
    assert extractor(np.zeros(800, np.float32))["input_features"].shape == (1, 8, 80)
    masks = extractor([np.zeros(800, np.float32), np.zeros(0, np.float32)])["attention_mask"]
    assert masks.sum(1).tolist() == [8, 0]  # three frames are filled up, as in training
    with pytest.raises(ValueError, match="resample"):
        extractor(np.zeros(800, np.float32), sampling_rate=16000)


def test_sounds_in_an_array_are_its_rows_and_what_is_no_sound_is_refused() -> None:
    extractor = MagnetoSpeechFeatureExtractor(8000)
    sounds = np.random.default_rng(0).standard_normal((2, 800)).astype(np.float32)
    wanted = extractor(list(sounds))["input_features"]
    assert wanted.shape == (2, 8, 80) and np.ptp(wanted) > 1
    for given in (sounds, torch.from_numpy(sounds), sounds.tolist()):
        np.testing.assert_array_equal(extractor(given)["input_features"], wanted)
    np.testing.assert_array_equal(extractor(sounds[0].tolist())["input_features"], wanted[:1])
    for wrong in (sounds.T, [sounds]):
        with pytest.raises(ValueError, match="must be mono"):
            extractor(wrong)
    with pytest.raises(ValueError, match="divide 16-bit ones by 32768"):
        extractor(np.zeros(800, np.int16))
