"""Training and evaluation with Hugging Face's Trainer, and generation.

`MagnetoForCausalLM` is a `PreTrainedModel`. The tokens are bytes here. Any tokenizer of
the transformers library works.
"""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from magneto.data.documents import docstrings
from magneto.hf import MagnetoConfig, MagnetoForCausalLM
from magneto.language.config import LanguageModelConfig


class Windows(Dataset):
    """Data set of byte sequences, in the format that Hugging Face's Trainer expects."""

    def __init__(self, texts: list[str], length: int) -> None:
        text = bytearray("\n\n".join(texts), "utf-8")
        data = torch.frombuffer(text, dtype=torch.uint8).long()
        self.rows = data[: len(data) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main(folder: Path, steps: int = 100) -> tuple[float, str]:
    """Train and save a model; return the held-out loss in nats per byte and a generated text."""
    torch.manual_seed(1)
    texts = docstrings()[:52]
    shape = LanguageModelConfig(
        vocab_size=256, width=64, layers=6, heads=4, ffn_width=256, positions="rotary"
    )
    model = MagnetoForCausalLM(MagnetoConfig.of(shape))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        learning_rate=3e-3,
        eval_strategy="steps",
        eval_steps=steps // 2,
        save_steps=steps // 2,
        load_best_model_at_end=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Windows(texts[:50], 64),
        eval_dataset=Windows(texts[50:], 64),
    )
    trainer.train()
    held_out_loss = trainer.evaluate()["eval_loss"]
    trainer.save_model(str(folder / "model"))

    again = MagnetoForCausalLM.from_pretrained(folder / "model")
    prompt = torch.tensor([list(b"Return the ")])
    written = again.generate(prompt, max_new_tokens=40, do_sample=False)
    return held_out_loss, bytes(written[0].tolist()).decode("utf-8", errors="replace")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        loss, sample = main(Path(name))
    print(f"held-out loss {loss:.2f} nats per byte. Generated text: {sample!r}")
