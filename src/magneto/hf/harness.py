"""Tasks of EleutherAI's lm-evaluation-harness, with our language model as one of transformers'."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magneto.config import nearest
from magneto.files import import_extra
from magneto.hf.configuration import MagnetoConfig
from magneto.hf.language import MagnetoForCausalLM
from magneto.hf.tokenizer import transformers_tokenizer
from magneto.language.models import LanguageModel


def task_manager(include: Path | None = None, builtin: bool = True) -> Any:
    """Return the harness's index of tasks: its own, and those of a folder of .yaml files.

    Raises:
        ModuleNotFoundError: If the harness is not installed; names the extra.
    """
    # Its own tasks are thousands of files, so they are read once, and only if needed.
    return _library("lm_eval.tasks").TaskManager(include_path=include, include_defaults=builtin)


def _library(name: str) -> Any:
    return import_extra(name, "eval", "other tasks need lm-eval")


def check_tasks(names: Sequence[str], manager: Any, ours: Sequence[str] = ()) -> None:
    """Raise ValueError for names that neither the harness nor `ours` has, with the nearest."""
    known = [*ours, *manager.all_tasks]
    wrong = []
    for name in names:
        if name not in known and not manager.match_tasks([name]):
            wrong.append(f"--tasks: no task {name!r}, here or in lm-evaluation-harness"
                         f"{nearest(name, known)}")  # fmt: skip
    if wrong:
        raise ValueError("\n".join(wrong))


def harness_model(model: LanguageModel, tokenizer: Any, length: int, batch_size: int = 16) -> Any:
    """Wrap a language model as the harness's `hf` model.

    Every text begins with the end of document, as documents in training do; the harness leaves it
    out where a task's text has it already.

    Args:
        model: In evaluation mode, on its device.
        tokenizer: Of `magneto.data.tokenizer`, one with a tokenizer.json.
        length: Tokens the model is fed at most; the harness cuts texts on the left.
        batch_size: Texts at once.

    Raises:
        ValueError: If the tokenizer has no tokenizer.json, which the harness needs.
    """
    from tokenizers.processors import TemplateProcessing

    fast = transformers_tokenizer(tokenizer, length)
    if fast is None or not fast.is_fast:
        raise ValueError("lm-evaluation-harness needs a run with a tokenizer.json (data.tokenizer: "
                         "bpe); this run has another tokenizer")  # fmt: skip
    end = (fast.eos_token, fast.eos_token_id)
    fast.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{end[0]} $A", pair=f"{end[0]} $A $B", special_tokens=[end]
    )
    wrapped = MagnetoForCausalLM(MagnetoConfig.of(model.config, tokenizer.end), model).eval()
    device = str(model.embedding.table.weight.device)
    return _library("lm_eval.models.huggingface").HFLM(
        pretrained=wrapped,
        tokenizer=fast,
        max_length=length,
        batch_size=batch_size,
        device=device,
        add_bos_token=True,
    )


def harness_scores(
    wrapped: Any,
    names: Sequence[str],
    num_fewshot: int,
    seed: int,
    manager: Any,
    *,
    limit: int | None = None,
    samples: bool = False,
) -> dict[str, Any]:
    """Evaluate tasks, groups or tags of the harness that the manager knows.

    Returns:
        As the harness gives it: "results" has the metrics of each task, "samples", if asked for,
        each question's log-likelihoods.

    Raises:
        ValueError: If a task's data cannot be loaded.
    """
    library = _library("lm_eval")
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        found = library.simple_evaluate(
            model=wrapped,
            tasks=list(names),
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            log_samples=samples,
            fewshot_random_seed=seed,
            bootstrap_iters=0,
        )
    except (OSError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"lm-evaluation-harness cannot run {', '.join(names)}: {first} (offline, give .yaml "
            "files with local data: --include DIR)"
        ) from error
    if found is None:
        raise ValueError(f"lm-evaluation-harness gave no result for {', '.join(names)}")
    return dict(found)
