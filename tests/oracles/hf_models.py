"""Small models of transformers' own classes, with random weights, and what models say."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from magneto.language.models import TextEncoder
from magneto.translation.model import TranslationModel
from magneto.vision_language.model import QuestionAnswerer
from magneto.vision_language.samples import join_samples

WORDS = {"vocab_size": 24, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
BERT: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 12, **WORDS,
}  # fmt: skip
BART: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "max_position_embeddings": 12, "decoder_start_token_id": 0, **WORDS,
}  # fmt: skip
LLAMA = BERT | {"num_key_value_heads": 1}
IMAGE = {key: BERT[key] for key in list(BERT)[:4]} | {"image_size": 8, "patch_size": 4}
THEIRS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12, **WORDS},
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA | {"sliding_window": 3},
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
    "BertForSequenceClassification": BERT | {"num_labels": 3},
    "BartForConditionalGeneration": BART,
    "MarianMTModel": BART,
    "ViTForImageClassification": IMAGE | {"num_labels": 3},
    "BeitForImageClassification": IMAGE | {"num_labels": 3, "use_relative_position_bias": True},
    "Kosmos2TextForCausalLM": {
        "embed_dim": 16, "layers": 2, "ffn_dim": 24, "attention_heads": 2,
        "max_position_embeddings": 12, **WORDS, "eos_token_id": 2,
    },
}  # fmt: skip


def their_class(name: str) -> Any:
    if hasattr(transformers, name):
        return getattr(transformers, name)
    from transformers.models.kosmos2 import modeling_kosmos2

    return getattr(modeling_kosmos2, name)


def shaken(model: nn.Module) -> nn.Module:
    """Give every parameter a value of its own; Marian's positions are computed, and stay."""
    generator = torch.Generator().manual_seed(0)
    computed = "embed_positions" if "Marian" in type(model).__name__ else "(none)"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if computed not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
        if isinstance(model, TextEncoder):
            model.token_type.weight.zero_()  # without types; torchscale has none
    return model.eval()


def theirs(name: str, **changes: Any) -> Any:
    kind = their_class(name)
    return shaken(kind(kind.config_class(**(THEIRS[name] | changes))))


def answers(model: Any) -> Tensor:
    """What a model of theirs or ours says of the same inputs."""
    config = model.config
    ours = hasattr(config, "placement")
    if hasattr(config, "image_size") and not hasattr(config, "answers"):
        channels = config.channels if ours else config.num_channels
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        shape = (2, channels, size, size)
        found = model(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    else:
        words = min(config.vocab_size, 24)
        ids = torch.randint(5, words, (2, 7), generator=torch.Generator().manual_seed(1))
        if isinstance(model, QuestionAnswerer):
            side = config.image_size
            images = torch.randn(2, config.channels, side, side, generator=torch.manual_seed(1))
            samples = join_samples(config.image_tokens, paired=[row.numpy() for row in ids])
            found = model(images, samples)
        elif isinstance(model, TranslationModel):
            found = model(ids, ids[:, :5])
        elif hasattr(config, "decoder_ffn_dim"):
            found = model(ids, decoder_input_ids=ids[:, :5])
        else:
            found = model(ids)
    return found if isinstance(found, Tensor) else found[0]


def same_gradients(answers: Sequence[Tensor], tensors: Sequence[Tensor], tolerance: float) -> None:
    """Compare gradients of the sum of squares of two answers, each for a tensor of its model."""
    pairs = zip(answers, tensors, strict=True)
    one, other = (torch.autograd.grad(answer.square().sum(), t)[0] for answer, t in pairs)
    torch.testing.assert_close(other, one, rtol=1e-4, atol=tolerance)
