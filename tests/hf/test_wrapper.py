"""The switches that all our transformers models have."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from magneto import PLACEMENTS, hf  # noqa: E402
from magneto.language.config import LanguageModelConfig  # noqa: E402
from magneto.language.models import LanguageModel  # noqa: E402


def wrapped(**changes) -> Any:
    torch.manual_seed(0)
    values = {"width": 32, "layers": 3, "heads": 4, "ffn_width": 48, "vocab_size": 300} | changes
    model = LanguageModel(LanguageModelConfig(**values))
    return hf.MagnetoForCausalLM(hf.MagnetoConfig.of(model.config), model)


def ids(length: int = 9) -> torch.Tensor:
    return torch.randint(1, 300, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gradient_checkpointing_changes_no_gradient(placement: str) -> None:
    model = wrapped(placement=placement).train()
    runs = 0

    def count(*_: Any) -> None:
        nonlocal runs
        runs += 1

    model.core.decoder.layers[0].feed_forward.register_forward_pre_hook(count)
    gradients = []
    for enable in (False, True, False):
        getattr(model, f"gradient_checkpointing_{'enable' if enable else 'disable'}")()
        assert model.is_gradient_checkpointing == model.is_activation_checkpointing == enable
        model.zero_grad()
        runs = 0
        model(ids(), labels=ids()).loss.backward()
        assert runs == 1 + enable
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(gradients[0], gradients[1], strict=True))


def test_checkpointing_every_other_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="every_n_layers=2"):
        wrapped().activation_checkpointing_enable(every_n_layers=2)


def test_another_attention_than_torchs_is_refused(tmp_path: Path) -> None:
    hf.register()
    wrapped().save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    with pytest.raises(ValueError, match="Flash Attention 2"):
        load(tmp_path, attn_implementation="flash_attention_2")
    with pytest.raises(ValueError, match="attn_implementation is sdpa here, not 'eager'"):
        load(tmp_path, attn_implementation="eager")
    model = load(tmp_path, attn_implementation="sdpa")
    with pytest.raises(ValueError, match="attn_implementation is sdpa here, not 'eager'"):
        model.set_attn_implementation("eager")


def test_hidden_states() -> None:
    model = wrapped().eval()
    output = model(ids(), output_hidden_states=True)
    assert len(output.hidden_states) == 4
    assert torch.equal(model.core.head(output.hidden_states[-1]), output.logits)
    assert model(ids()).hidden_states is None
    model.config.output_hidden_states = True
    assert len(model(ids()).hidden_states) == 4
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.core.modules())
    with pytest.raises(ValueError, match="output_attentions"):
        model(ids(), output_attentions=True)


def test_push_to_hub_uploads_what_save_pretrained_writes(monkeypatch) -> None:
    """It is transformers' own; here its last step, the upload, is looked at instead of done."""
    from huggingface_hub.errors import EntryNotFoundError
    from transformers.utils import hub

    sent: set[str] = set()

    class Api:
        def create_repo(self, name: str, **_: Any) -> Any:
            return type("Repo", (), {"repo_id": name})()

    def upload(self, folder, *_: Any, **__: Any) -> None:
        sent.update(path.name for path in Path(folder).iterdir())

    def no_card(*_: Any, **__: Any) -> None:
        raise EntryNotFoundError("none yet")

    monkeypatch.setattr(hub, "hf_api", Api)
    monkeypatch.setattr(hub.ModelCard, "load", no_card)
    monkeypatch.setattr(hub.PushToHubMixin, "_upload_modified_files", upload)
    wrapped().push_to_hub("me/mine")
    assert {"config.json", "model.safetensors", "magneto_classes.py"} <= sent
