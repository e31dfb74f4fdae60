"""A small transducer, its data, and a run of two steps, for commands that need one."""

from pathlib import Path

import torch

from magneto.cli import main
from magneto.speech.config import SpeechDataConfig, SyntheticConfig, TransducerConfig
from magneto.speech.model import Transducer

SIZES = {
    "width": 16, "layers": 2, "heads": 2, "ffn_width": 32, "mel_bins": 8, "positions": "rotary",
    "front_channels": (2, 3), "predictor_width": 12, "joint_width": 10, "vocab_size": 5,
}  # fmt: skip
FEW = SyntheticConfig(train_utterances=12, validation_utterances=5, words=(1, 2))
DATA = SpeechDataConfig(
    tokenizer="characters", sample_rate=8000, max_duration=10.0, max_frames=1000, synthetic=FEW
)
SMALL = """--model.width 16 --model.layers 2 --model.heads 2 --model.ffn_width 32
--model.front_channels 2,3 --model.mel_bins 8 --data.features.mel_bins 8
--model.predictor_width 12 --model.joint_width 10 --data.max_frames 1000
--data.synthetic.train_utterances 12 --data.synthetic.validation_utterances 5
--data.synthetic.words 1,2 --training.steps 2 --training.warmup_steps 1
--training.evaluate_every 0 --training.save_every 0 --training.average_checkpoints 0
--training.tensorboard false --training.device cpu""".split()  # noqa: SIM905


def small_model(seed: int = 0, **given) -> Transducer:
    """Return a model in evaluation mode whose answers are no longer nearly even."""
    torch.manual_seed(seed)
    model = Transducer(TransducerConfig(**{**SIZES, **given})).eval()
    with torch.no_grad():
        model.joiner.output.weight.mul_(6)
        model.joiner.encoder_proj.weight.mul_(6)
        model.joiner.predictor_proj.weight.mul_(6)
        model.joiner.output.bias[0] += 2  # some frames hold no label
    return model


def train_small(place: Path, *words: str) -> Path:
    assert main(["train", "transducer/tiny", "--out", str(place), *SMALL, *words]) == 0
    return place
