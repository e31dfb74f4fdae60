"""A run of two steps on a few built-in utterances, for commands that need one."""

from pathlib import Path

from magneto.cli import main

SMALL = """--model.width 16 --model.layers 2 --model.heads 2 --model.ffn_width 32
--model.front_channels 2,3 --model.mel_bins 8 --data.features.mel_bins 8
--model.predictor_width 12 --model.joint_width 10 --data.max_frames 1000
--data.synthetic.train_utterances 12 --data.synthetic.validation_utterances 5
--data.synthetic.words 1,2 --training.steps 2 --training.warmup_steps 1
--training.evaluate_every 0 --training.save_every 0 --training.average_checkpoints 0
--training.tensorboard false --training.device cpu""".split()  # noqa: SIM905


def train_small(place: Path, *words: str) -> Path:
    assert main(["train", "transducer/tiny", "--out", str(place), *SMALL, *words]) == 0
    return place
