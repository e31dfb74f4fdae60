"""What ranks begin with, in a process of its own under torchrun or alone.

python initial_weights.py OUT none|ddp|fsdp|hybrid

Writes the first weights to OUT/initial, and the largest number of elements that each rank had in
memory while they were made, beside what it may have, to OUT/rank-N.json.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from torch import nn

from magneto.training.checkpoint import CheckpointWriter, model_pieces
from magneto.training.config import TrainingConfig
from magneto.training.distributed import join_world
from magneto.training.model import initial_model, own_tensors
from magneto.translation.config import TranslationConfig
from magneto.translation.model import TranslationModel
from tests.unit.training.toy import Toy
from tests.watched import Peak

SIZES: dict[str, Any] = {"width": 64, "heads": 4, "ffn_width": 256, "positions": "learned"}


class Translating(Toy):
    """A tied table, a buffer, biases, norms, two stacks; 250 rows do not divide by 4."""

    def build_model(self) -> nn.Module:
        return TranslationModel(
            TranslationConfig(**SIZES, encoder_layers=3, decoder_layers=3, vocab_size=250)
        )


def main(out: Path, strategy: str) -> None:
    size = 2 if strategy == "hybrid" else None
    config = TrainingConfig(device="cpu", distributed=strategy, shard_size=size)  # type: ignore[arg-type]
    with join_world(config) as world:
        task = Translating()
        with Peak() as peak:
            model = initial_model(task, 3, world)
        pieces = model_pieces(model)
        whole = {name: math.prod(piece.shape) for name, piece in pieces.items()}
        # Every rank's share is padded to that of the first.
        rows = {n: math.ceil(p.shape[0] / world.shard_size) for n, p in pieces.items()}
        share = {
            name: rows[name] * math.prod(piece.shape[1:]) if piece.sharded else whole[name]
            for name, piece in pieces.items()
        }
        largest = max(
            sum(tensor.numel() for tensor in own_tensors(module).values())
            for module in model.modules()
        )
        found = {
            "most": peak.bytes / 4,  # all are float32
            "share": sum(share.values()),
            "largest": largest,
            "whole": sum(whole.values()),
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / f"rank-{world.rank}.json").write_text(json.dumps(found))
        CheckpointWriter(world, background=False).write(out / "initial", {"model": pieces}, {})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
