"""torchscale's models for `make bench`, the library of Sub-LN's authors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.bench_cases import PATCH, QUESTION, Case
from benchmarks.bench_image_peers import answer_head, answered
from benchmarks.bench_text_peers import Peer, all_places, causal, translated
from benchmarks.contenders import FirstOf
from benchmarks.timm_modules import with_timm


def sizes(case: Case, side: str, layers: int) -> dict[str, Any]:
    """Return the configuration of a Sub-LN stack, the library's default."""
    return {
        f"{side}_embed_dim": case.width, f"{side}_layers": layers,
        f"{side}_attention_heads": case.heads, f"{side}_ffn_embed_dim": 4 * case.width,
    }  # fmt: skip


def tables(case: Case) -> tuple[nn.Module, nn.Module]:
    """Return embeddings of tokens and of positions, which start at 2."""
    from torchscale.component.embedding import PositionalEmbedding, TextEmbedding

    text = TextEmbedding(case.vocab_size, case.width)
    return text, PositionalEmbedding(case.length + 2, case.width)


def decoder(case: Case) -> Peer:
    """Return the causal language model."""
    with_timm("torchscale.architecture.decoder")
    return causal("torchscale", case)


class Masked(nn.Module):
    """Encoder with a head that shares the weights of the embedding."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        from torchscale.architecture.config import EncoderConfig
        from torchscale.architecture.encoder import Encoder

        config = EncoderConfig(
            **sizes(case, "encoder", case.layers), vocab_size=case.vocab_size, dropout=0.0,
            activation_fn="gelu", no_output_layer=True,
        )  # fmt: skip
        text, position = tables(case)
        self.encoder = Encoder(config, embed_tokens=text, embed_positions=position)
        self.bias = nn.Linear(case.width, case.vocab_size)
        self.bias.weight = text.weight  # type: ignore[assignment]

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) to logits (batch, length, vocabulary)."""
        return self.bias(self.encoder(tokens)["encoder_out"])


def masked(case: Case) -> Peer:
    """Return the masked language model, with logits at every position."""
    with_timm("torchscale.architecture.encoder")
    return all_places(Masked(case), case)


def translation(case: Case) -> Peer:
    """Return the encoder-decoder with one shared embedding."""
    with_timm("torchscale.architecture.encoder_decoder")
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.encoder_decoder import EncoderDecoder

    half = case.layers // 2
    config = EncoderDecoderConfig(
        **sizes(case, "encoder", half), **sizes(case, "decoder", half), dropout=0.0,
        vocab_size=case.vocab_size, activation_fn="gelu", share_all_embeddings=True,
    )  # fmt: skip
    (text, source), (_, target) = tables(case), tables(case)
    model = EncoderDecoder(
        config, encoder_embed_tokens=text, encoder_embed_positions=source,
        decoder_embed_tokens=text, decoder_embed_positions=target,
    )  # fmt: skip
    return translated(FirstOf(model), case)


class Answerer(nn.Module):
    """BEiT-3 with the head of its authors' model of visual question answering."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        from torchscale.architecture.config import EncoderConfig
        from torchscale.model.BEiT3 import BEiT3

        width = case.width
        config = EncoderConfig(
            **sizes(case, "encoder", case.layers), img_size=case.image_size, patch_size=PATCH,
            vocab_size=case.vocab_size, multiway=True, layernorm_embedding=False,
            normalize_output=True, no_output_layer=True, max_source_positions=QUESTION + 2,
            dropout=0.0, activation_fn="gelu",
        )  # fmt: skip
        self.beit3 = BEiT3(config)
        self.pooler = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh())
        self.head = answer_head(width)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        """Images and questions to logits (questions, answers)."""
        features = self.beit3(textual_tokens=questions, visual_tokens=images)["encoder_out"]
        return self.head(self.pooler(features[:, 0]))


def answers(case: Case) -> Peer:
    """Return BEiT-3 over pairs with the binary cross-entropy of all answers."""
    with_timm("torchscale.model.BEiT3")
    return answered(Answerer(case), case)
