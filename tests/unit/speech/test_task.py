"""Speech recognition as a task: what is counted, left out, drawn, and what a run keeps."""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from magneto.config import ConfigError
from magneto.data.stream import BatchStream
from magneto.fields import build
from magneto.functional.transducer import TransducerAlignment
from magneto.runs import load_run
from magneto.speech import batching
from magneto.speech.batching import SpeechBatch
from magneto.speech.config import (
    FilterBankConfig,
    SpeechDataConfig,
    SyntheticConfig,
    TransducerConfig,
)
from magneto.speech.decoding import GreedySearch, Hypothesis
from magneto.speech.figures import draw_alignment, draw_errors, draw_spectrogram, recognised_words
from magneto.speech.task import (
    LEFT_OUT,
    NO_FINITE_LOSS,
    SpeechRecognition,
    character_errors,
    count_references,
    error_rate_half_width,
    error_rates,
    normalised_rates,
    text_normaliser,
    word_errors,
)
from magneto.training.config import TrainingConfig
from magneto.training.logging import read_metrics
from magneto.training.loop import train
from magneto.training.task import NON_FINITE, figures_of
from tests.problems import listed
from tests.recorded_progress import RecordedProgress
from tests.unit.speech import small
from tests.unit.speech.small import SIZES, train_small
from tests.unit.speech.wavs import write, write_table

# Of which configuration, what is set, and the words of the error.
WRONG: list[tuple[type, dict[str, Any], str]] = [
    (SpeechDataConfig, {"max_frames": 10}, "max_frames (10) must be 3000 or more"),
    (SpeechDataConfig, {"augmentation": {"speeds": [0.5]}, "max_frames": 5999}, "be 6000 or more"),
    (SpeechDataConfig, {"features": {"high_frequency": 9000}}, "at most half the sample rate"),
    (SpeechDataConfig, {"features": {"frame_shift": 30}}, "frame_shift must be 1 or more and at"),
    (SpeechDataConfig, {"cached": True, "augmentation": {"gain": 3}}, "cached does not work"),
    (SpeechDataConfig, {"cached": True, "augmentation": {"speeds": [1, 1.1]}}, "cached does not"),
    (SpeechDataConfig, {"source": "builtin:digits"}, "unknown built-in speech 'builtin:digits'."),
    (SpeechDataConfig, {"augmentation": {"noise_snr": [3, 2]}}, "noise_snr must be a minimum and"),
    (TransducerConfig, {"intermediate_layers": [11]}, "below the last layer (11)"),
    (SpeechDataConfig, {"features": {"low_frequency": 8000}}, "must be below the upper edge"),
    (SpeechDataConfig, {"augmentation": {"speeds": []}}, "speeds must have at least one number"),
    (SpeechDataConfig, {"synthetic": {"words": [3, 2]}}, "words must be a minimum and"),
    (SpeechDataConfig, {"synthetic": {"snr": [3, 2]}}, "snr must be a minimum and"),
    (TransducerConfig, {"kl_weight": 0.2}, "need intermediate_layers"),
    (TransducerConfig, {"intermediate_weight": 0.2}, "need intermediate_layers"),
    (TransducerConfig, {"mel_bins": 42}, "mel_bins (42) must be a multiple of 4"),
    (
        TransducerConfig,
        {"encoder_layers": 3, "decoder_layers": 3},
        "encoder_layers does not apply to a transducer",
    ),
]


def test_impossible_values() -> None:
    for kind, values, words in WRONG:
        with pytest.raises(ConfigError) as found:
            build(kind, values, "section")
        (message,) = found.value.lines
        assert words in message, values


pytest.importorskip("jiwer")
pytest.importorskip("soundfile")


MODEL = TransducerConfig(**{**SIZES, "vocab_size": None})
FEW = SyntheticConfig(train_utterances=8, validation_utterances=3, words=(1, 2))
DATA = replace(small.DATA, features=FilterBankConfig(mel_bins=8), synthetic=FEW)


def made(**data: Any) -> SpeechRecognition:
    task = SpeechRecognition(MODEL, replace(DATA, **data), 1)
    task.search = GreedySearch(1)  # an untrained model emits as many labels as it may
    return task


def test_padding_is_told_and_no_utterance_is_left_out_of_evaluation() -> None:
    """One that can't be read, and one without a finite loss, count with all their words."""
    task, progress = made(), RecordedProgress()
    task.prepare(progress)
    torch.manual_seed(0)
    model = task.build_model().eval()
    (group, *_) = task.train_stream(1, 1).batch(0)[0]
    found = task.loss(model, [group])
    share = float(found.logs["padding"] / found.count)
    assert share == pytest.approx(1 - group.frames / group.features[..., 0].numel()) and share > 0
    assert found.units == group.frames == group.feature_lengths.sum()
    batch: SpeechBatch = task.validation_batches()[0]
    count = len(batch.ids)
    weights, features = batch.weights.clone(), batch.features.clone()
    weights[0] = 0
    features[1] = torch.nan
    broken = replace(batch, weights=weights, features=features)
    scores = task.score(model, broken)
    assert [id for id, _, _ in scores.predictions] == batch.ids
    assert scores.predictions[0][2] == ""
    assert scores.sums["count"] == count - 2 and scores.sums["unreadable"] == 1
    assert scores.sums[NON_FINITE] == 1 and scores.sums["loss"].isfinite()
    sums = {name: float(value.detach()) for name, value in scores.sums.items()}
    words = sum(len(text.split()) for text in batch.texts)
    metrics = task.summarise(sums, [scores.predictions])
    errors = metrics["substitutions"] + metrics["deletions"] + metrics["insertions"]
    assert metrics["wer"] == pytest.approx(errors)
    only = task.summarise(sums, [[(i, text, "") for i, text, _ in scores.predictions]])
    assert only["wer"] == only["deletions"] == only["cer"] == 1.0 and words > 3
    assert "100% of the decoded validation texts are empty" in progress.lines.pop()
    task.summarise(sums, [[*((str(n), "one", "") for n in range(9)), ("9", "one", "two")]])
    assert "are empty" not in progress.lines[-1]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"model\.mel_bins \(8\) must equal data\.features\.mel_bins"
    ):
        made(features=FilterBankConfig(mel_bins=12))
    of_bytes = replace(DATA, tokenizer="bytes")  # 260 tokens
    task = SpeechRecognition(replace(MODEL, vocab_size=260), of_bytes, 1)
    with pytest.raises(ValueError, match=r"model\.vocab_size \(260\) is too small.*transcripts"):
        task.prepare()
    task = SpeechRecognition(replace(MODEL, vocab_size=300), of_bytes, 1)
    assert task.build_model().joiner.output.out_features == 300 > task.vocabulary.size
    both = {"source": "builtin:spoken-digits", "validation_source": "builtin:spoken-digits"}
    with pytest.raises(ValueError, match="is the source of the training data and of"):
        made(**both).prepare()
    with pytest.raises(ValueError, match="omit the validation source"):
        made(**both, tokenizer="bytes", cmvn="none").train_stream(1, 1)
    with pytest.raises(ConfigError, match=r"no normaliser 'whisper_english'.*whisper-english"):
        text_normaliser("whisper_english")


def test_errors_of_words_and_characters() -> None:
    references = ["one two three", "four  five", "", "six"]
    hypotheses = ["one too three three", "five", "a b", ""]
    found = word_errors(references, hypotheses)
    assert (found.hits, found.substitutions, found.deletions, found.insertions) == (3, 1, 2, 3)
    assert count_references(found) == 6 and found.wer == 1.0
    assert character_errors(["ab c"], ["abc"]).deletions == 1
    # One error of 4 words; then one error in each utterance, so that nothing varies.
    assert error_rate_half_width(["a b", "c d"], ["a", "c d"]) == pytest.approx(1.96 / 4, rel=1e-4)
    for hypotheses in (["a", "c d e"], ["a x", "c"], ["a b x", "c x"]):
        assert error_rate_half_width(["a b", "c d"], hypotheses) == 0
    # 2 errors of 4 words and 0 of 1: residuals from a rate of 0.4 are 0.4 and -0.4.
    assert error_rate_half_width(["a b c d", "e"], ["a b", "e"]) == pytest.approx(
        1.96 * 0.8 / 5, rel=1e-4
    )
    assert math.isnan(error_rate_half_width(["a", ""], ["b", "b"]))
    rates = error_rates([("1", "one two three", "one too"), ("2", "six", "six six"), ("3", "", "")])
    assert rates == pytest.approx({
        "wer": 3 / 4, "cer": 11 / 16, "substitutions": 1 / 4, "deletions": 1 / 4,
        "insertions": 1 / 4, "empty": 1 / 3,
    })  # fmt: skip
    found = normalised_rates([("1", "A b", "a b C"), ("2", "x", "x")], str.lower)
    assert (found["wer_normalised"], found["cer_normalised"]) == (pytest.approx(1 / 3), 0.5)
    assert word_errors([], []).wer == 0 and word_errors(["", ""], ["", "x"]).insertions == 1
    written = recognised_words(["one two one", "two", ""], ["one too", "two two", "x"])
    assert written["one"] == {"one": 1, "": 1} and written[""] == {"two": 1, "x": 1}
    drawn = draw_errors(written, 3)
    assert "4 words. The model recognised 2 of these words correctly" in drawn.caption
    assert all(f">{cell}<" in str(drawn.image) for cell in ("too (1)", "(inserted)"))
    image = str(draw_errors({"a": Counter("aax"), "b": Counter({"": 3, "b": 1})}, 3).image)
    cells = re.findall(r">([^<>]+)</t", image)
    assert cells[5:] == ["b", "4", "1", "3", "a", "3", "2", "0", "x (1)"]


def test_the_three_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magneto.figures.save", lambda *given, **how: b"<svg")
    task = made()
    task.prepare()
    torch.manual_seed(0)
    figures = figures_of(task, task.build_model().eval())
    best, total = map(float, re.findall(r"-\d+\.\d+", figures[1].caption))
    assert best <= total < 0
    words = sum(len(text.split()) for text in task.speech.splits.validation.values("text"))
    assert f"3 validation utterances have {words} words" in figures[2].caption


def test_the_best_path_rises_in_the_middle_of_each_labels_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("magneto.speech.figures.as_png", drawn.append)
    task = made()
    task.prepare()
    frames, scores = torch.tensor([[1, 1, 3]]), torch.tensor([-2.0])
    alignment = TransducerAlignment(frames, scores, scores, torch.zeros(1, 5, 4))
    draw_alignment(task, "a", "one", [1, 2, 3], alignment)
    (line,) = drawn[0].axes[0].lines
    times, heights = line.get_data()
    assert line.get_drawstyle() == "steps-post" and list(heights) == [0, 1, 2, 3, 3]
    assert times == pytest.approx([0, 0.06, 0.06, 0.14, 0.2])  # a frame is 0.04 s
    (image,) = drawn[0].axes[0].images
    assert image.get_array().shape == (4, 5) and image.get_extent()[:2] == pytest.approx([0, 0.2])
    labels = task.vocabulary.encode(["one two"])[0].tolist()
    features = np.arange(320.0).reshape(40, 8)
    draw_spectrogram(task, "a", "one", features, Hypothesis(labels, [0, 1, 2, 3, 5, 6, 8], 0.0))
    (axes,) = drawn[1].axes
    assert [(t.get_text(), t.get_position()[0]) for t in axes.texts] == [
        ("one", pytest.approx(0.06)), ("two", pytest.approx(0.28)),
    ]  # fmt: skip
    assert np.array_equal(axes.images[0].get_array(), features.T)
    assert axes.images[0].origin == image.origin == "lower"  # low bins and first labels
    assert axes.images[0].get_extent() == pytest.approx([0, 0.4, 0, 8])


def test_a_dummy_batch_fills_its_budgets() -> None:
    for rate, labels in ((60.0, 19), (1.5, 15)):
        task = made(max_frames=3500, max_cells=60_000, max_text_rate=rate)  # utterances of 10 s
        one, two = task.dummy_batch(2)
        assert one.features.shape == (3, 1000, 8) and two.targets.shape == (3, labels)


def test_the_baseline_is_the_commonest_word() -> None:
    task = made(synthetic=replace(FEW, validation_utterances=20))
    task.prepare()
    texts = [text.split() for text in task.speech.splits.train.values("text")]
    words = [word for text in texts for word in text]
    common = max(words, key=words.count)
    batches = task.validation_batches()
    assert len(batches) > 1
    for limit, some in ((None, batches), (1, [batches[0]])):
        held = [text.split() for batch in some for text in batch.texts]
        errors = sum(len(text) - (common in text) for text in held)
        assert task.baseline(limit)["wer"] == pytest.approx(errors / sum(map(len, held)))


# A step is an epoch.
ONE_GROUP = {"max_frames": 10_000}


def broken(names: tuple[int, ...]) -> SpeechRecognition:
    """A task whose utterances of some numbers have no finite loss from the second step on."""
    task = made(**ONE_GROUP)
    stream = task.train_stream(1, 1)

    class Spoilt(BatchStream):
        def batch(self, step: int, parts: int = 1, wanted: Any = (0,)) -> Any:
            pieces = super().batch(step, parts, wanted)
            for group in (group for piece in pieces for group in piece if step > 0):
                for row, name in enumerate(group.ids):
                    if int(name.rpartition("-")[2]) in names:
                        group.feature_lengths[row] = 3
                        group.sizes[row] = (3, group.sizes[row][1])
            return pieces

    spoilt = Spoilt(stream.plan, stream.make, stream.describe)
    task.train_stream = lambda batch_size, seed: spoilt  # type: ignore[method-assign]
    return task


TRAINING = TrainingConfig(
    steps=2, batch_size=1, learning_rate=1e-3, log_every=1, device="cpu", tensorboard=False
)


def test_an_utterance_without_a_finite_loss_is_named_and_the_run_goes_on(
    tmp_path: Path, capsys
) -> None:
    result = train(broken((3, 7)), TRAINING, tmp_path / "run", seed=1)
    assert result.status == "finished"
    assert f"{NO_FINITE_LOSS}: 2" in capsys.readouterr().err  # at the end
    assert sorted(row[:2] for row in listed(tmp_path / "run")) == [
        [NO_FINITE_LOSS, "train-3"], [NO_FINITE_LOSS, "train-7"]
    ]  # fmt: skip
    rows = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert rows[-1][NON_FINITE] > 0 and all(row["loss"] > 0 for row in rows)
    result = train(broken(tuple(range(8))), TRAINING, tmp_path / "none", seed=1)
    assert result.status == "diverged" and "every loss in the batch is" in result.reason
    assert (tmp_path / "none" / "diverged" / "batch.safetensors").exists()


def test_what_only_decoding_shows_is_named_and_kept_over_a_resume(tmp_path: Path, capsys) -> None:
    folder = write_table(tmp_path / "data", "train", 3, sample_rate=8000)
    write(folder / "train-2.wav", sample_rate=8000, quiet=True)
    with (folder / "train.jsonl").open("a") as file:
        file.write('\n{"id": "none", "audio": "none.wav", "text": "Number"}')
    write_table(folder, "dev", 1, sample_rate=8000)
    kept = [[LEFT_OUT, "none", "missing recordings"],
            [LEFT_OUT, "train-2", "recordings of silence"]]  # fmt: skip
    for steps in (1, 2):
        training = replace(TRAINING, steps=steps, save_every=1)
        task = made(**ONE_GROUP, source=str(folder))
        train(task, training, tmp_path / "run", seed=1, resume=steps > 1)
        output = capsys.readouterr().err
        assert (f"{LEFT_OUT}: train-2 (recordings of silence)" in output) == (steps == 1)
        assert listed(tmp_path / "run") == kept


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_cache: Path) -> Path:
    return train_small(tmp_path_factory.mktemp("speech") / "run")


def test_a_run_keeps_what_its_model_needs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {path.name for path in (run / "assets").iterdir()}
    assert {"tokenizer", "cmvn.json", "data.digest"} <= kept
    before = load_run(run, "auto", {}).evaluate().metrics
    assert 0 < before["wer"] <= 5 and before["loss"] > 0

    def refuse(*given: Any) -> None:
        raise AssertionError("no data is to be touched")

    monkeypatch.setattr(batching, "load_speech", refuse)
    task: Any = load_run(run, "auto", {}).task
    assert task.vocabulary.decode(task.vocabulary.encode(["one"])[0]) == "one"
    assert Path(task.data_config.cmvn).samefile(run / "assets" / "cmvn.json")


def test_a_run_begins_with_the_weights_of_another(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--model.pretrained", str(run), "--data.tokenizer", str(run / "assets" / "tokenizer")]
    second = train_small(tmp_path / "second", *words, "--training.learning_rate", "1e-12")
    given, found = (load_run(each, "final", {}).model.state_dict() for each in (run, second))
    for name, value in given.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=0)
    opened, progress = load_run(second, "final", {}).recipe, RecordedProgress()
    assert opened.model.pretrained is None
    more = {"intermediate_layers": (0,), "intermediate_weight": 0.1, "pretrained": str(run)}
    task = SpeechRecognition(replace(opened.model, **more), opened.data, 1)
    task.prepare(progress)
    assert task.initial_weights()
    assert any("which are initialised randomly: intermediate" in line for line in progress.lines)
    monkeypatch.setattr("magneto.speech.task.open_weights", lambda path: {"elsewhere": None})
    with pytest.raises(ValueError, match="has no weights of this model"):
        task.initial_weights()
