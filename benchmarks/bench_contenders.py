"""Contenders of `make bench`: Magneto, other libraries by field, and the matrix products alone.

The step of another library is the usual loop of its users: its loss, backward, the gradient norm
clipped at 1, fused AdamW over all parameters. Magneto's is the loop of `magneto train`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn

from benchmarks import bench_image_peers as images
from benchmarks import bench_speech_peers as speech
from benchmarks import bench_text_peers as texts
from benchmarks import bench_torchscale as torchscale
from benchmarks.bench_cases import Case
from benchmarks.bench_product import build_task, product_batch, product_step
from benchmarks.products import products_of, replay
from benchmarks.turns import Step, usual_step
from magneto.training.distributed import keep_freed_memory

Make = Callable[[Case], tuple[Step, nn.Module | None]]
LIMIT = "the products alone"
REFERENCE = "magneto sub"
# Every field has a version in plain torch; it is also timed with Magneto's allocator setting. The
# multiway version computes what Magneto does for questions about images.
PLAIN, MULTIWAY, KEPT = "plain torch", "multiway in plain torch", ", freed memory kept"

PEERS: dict[str, dict[str, Callable[[Case], texts.Peer]]] = {
    "causal-lm": {
        "transformers GPT-2": texts.gpt2,
        "x-transformers": texts.x_transformers_causal,
        "torchscale": torchscale.decoder,
        "torch nn.TransformerEncoder": partial(texts.causal, "torch nn.TransformerEncoder"),
        "plain torch": partial(texts.causal, "nanoGPT style"),
    },
    "masked-lm": {
        "transformers BERT": texts.bert,
        "x-transformers": texts.x_transformers_masked,
        "torchscale": torchscale.masked,
        "plain torch": texts.plain_masked,
    },
    "translation": {
        "transformers Marian": texts.marian,
        "x-transformers": texts.x_transformers_translation,
        "torchscale": torchscale.translation,
        "plain torch": texts.plain_translation,
    },
    "image-classification": {
        "transformers ViT": images.vit,
        "timm ViT": images.timm_vit,
        "x-transformers": images.x_transformers_vit,
        "plain torch": images.plain_vit,
    },
    "transducer": {
        "transformers Speech2Text": speech.speech_to_text,
        "plain torch": speech.plain,
    },
    "visual-question-answering": {
        "transformers ViLT": images.vilt,
        "torchscale BEiT-3": torchscale.answers,
        "plain torch": images.plain_answers,
        MULTIWAY: images.multiway_answers,
    },
}

NOTES = {
    "magneto": "the loop of `magneto train` in one process without a directory: batches from its "
    "prefetch thread, loss as a sum, division by the count, clipping at 1, fused AdamW with weight "
    "decay on matrices only, the learning rate of the step, counters, the loss read every step; "
    "memory that a step frees stays with the process (`keep_freed_memory`), unlike in the other "
    "libraries' usual loops; plain torch is timed with and without this setting",
    "peers": "the model's own loss where it computes one, `clip_grad_norm_` at 1, "
    "`AdamW(fused=True)` over all parameters; the loss is not read",
    "the products alone": "every matrix product and convolution of a step of Magneto, forward and "
    "both of backward, and nothing else. Attention counts in full also where it is causal and "
    "torch's own attention omits half of it; operands of one size share memory, so caches hold "
    "more of them than in a real step",
    "transformers GPT-2": 'activation "gelu" instead of its default tanh form; scaled dot product '
    "attention",
    "transformers BERT": "norms after the sublayers; logits at all positions, of which 85 % are "
    "not needed (the same in x-transformers and torchscale); Magneto and plain torch compute only "
    "the masked positions",
    "transformers Marian": "norms after the sublayers; sinusoidal positions",
    "transformers ViLT": "no fused attention in its class; its masks are built in every step; its "
    "loss is multiplied by the number of answers",
    "transformers Speech2Text": "the nearest class, since no library has this transducer: "
    "transformers' encoder with its own one-dimensional convolutions and unfused attention, an "
    "LSTM and a joiner as large as Magneto's, and a loss in plain torch (bench_speech_peers.py). "
    "The loss equals warprnnt-numba's, which iterates over the lattice in Python on a CPU. "
    "transformers' own RNN-T is a Conformer, whose loss needs torchaudio",
    "plain torch": "a page of plain torch in benchmarks/ (nano_gpt.py, bench_*_peers.py); in "
    "translation it is torch's own nn.Transformer",
    "x-transformers": "no biases in attention and in norms; flash attention on; its ViT normalises "
    "the patches and averages them",
    "torchscale": "Sub-LN, its default; unfused attention, as in the library; installed without "
    "its dependencies, with timm over a stub of torchvision",
    "torchscale BEiT-3": "feed-forward networks and projections for each modality, as in Magneto; "
    "transformers ViLT and plain torch have one set for both",
    "multiway in plain torch": "plain torch with weights for each modality, as in Magneto",
    "timm ViT": "over a stub of torchvision, which its models do not use for computing",
}


def usual_loop(make: Callable[[Case], texts.Peer], case: Case) -> tuple[Step, nn.Module]:
    """Return another library's step and its model."""
    torch.manual_seed(1)
    model, loss = make(case)
    return usual_step(model.train().parameters(), loss), model


def keeping(make: Callable[[Case], texts.Peer], case: Case) -> tuple[Step, nn.Module]:
    """Return another library's step with freed memory kept for the next step, as in Magneto."""
    kept = ExitStack()
    kept.enter_context(keep_freed_memory(torch.device("cpu")))
    step, model = usual_loop(make, case)

    def run(kept: ExitStack = kept) -> torch.Tensor:
        return step()

    return run, model


def ours(placement: str, case: Case) -> tuple[Step, nn.Module]:
    """Return Magneto's step and its model."""
    return product_step(case, placement)


def limit(case: Case) -> tuple[Step, None]:
    """Return the step of the matrix products alone."""
    task, _ = build_task(case, "sub")
    return replay(products_of(task, product_batch(case))), None


def contenders(field: str) -> Mapping[str, Make]:
    """Return all contenders of a field by name."""
    return {
        "magneto sub": partial(ours, "sub"),
        "magneto pre": partial(ours, "pre"),
        LIMIT: limit,
        **{name: partial(usual_loop, make) for name, make in PEERS[field].items()},
        **{
            f"{name}{KEPT}": partial(keeping, make)
            for name, make in PEERS[field].items()
            if name in (PLAIN, MULTIWAY)
        },
    }
