"""What fields of a recipe are called in other programs, for hints alone."""

from __future__ import annotations

ELSEWHERE = {
    "lr": "learning_rate", "bs": "batch_size", "batch": "batch_size", "warmup": "warmup_steps",
    "max_steps": "steps", "iterations": "steps", "num_epochs": "epochs",
    "num_train_epochs": "epochs", "grad_clip": "clip_norm", "max_grad_norm": "clip_norm",
    "wd": "weight_decay", "accumulation": "gradient_accumulation_steps", "amp": "precision",
    "dtype": "precision", "fp16": "precision", "bf16": "precision", "workers": "num_workers",
    "optim": "optimizer", "scheduler": "schedule", "eval_every": "evaluate_every",
    "eval_steps": "evaluate_every", "save_steps": "save_every", "logging_steps": "log_every",
    "hidden_size": "width", "hidden_dim": "width", "d_model": "width", "n_embd": "width",
    "embed_dim": "width", "dim": "width", "n_layer": "layers", "num_layers": "layers",
    "num_hidden_layers": "layers", "depth": "layers", "n_head": "heads", "num_heads": "heads",
    "num_attention_heads": "heads", "intermediate_size": "ffn_width", "d_ff": "ffn_width",
    "seq_len": "max_length", "block_size": "max_length",
    "context_length": "max_length", "path": "source", "dataset": "source", "wandb": "tracker",
}  # fmt: skip
"""By their names there, in `training`, `model` or `data`, the names that they have here."""
