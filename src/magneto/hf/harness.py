"""Evaluation of language models by EleutherAI's lm-evaluation-harness."""

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
    """Return the harness's task manager, optionally with the tasks of a folder of .yaml files."""
    # The built-in tasks are thousands of files: read them only if needed.
    return _library("lm_eval.tasks").TaskManager(include_path=include, include_defaults=builtin)


def _library(name: str) -> Any:
    return import_extra(name, "eval", "tasks of lm-evaluation-harness need lm-eval")


def check_tasks(names: Sequence[str], manager: Any, ours: Sequence[str] = ()) -> None:
    """Raise ValueError for a name that is neither a task of the harness nor in `ours`."""
    known = [*ours, *manager.all_tasks]
    unknown = [n for n in names if n not in known and not manager.match_tasks([n])]
    if unknown:
        raise ValueError("\n".join(
            f"--tasks: no task {name!r} in Magneto or lm-evaluation-harness{nearest(name, known)}"
            for name in unknown
        ))  # fmt: skip


def harness_model(model: LanguageModel, tokenizer: Any, length: int, batch_size: int = 16) -> Any:
    """Wrap a language model as the harness's `hf` model.

    Every text begins with the end token, as documents do in training data.

    Args:
        model: Language model in evaluation mode, on its device.
        tokenizer: Tokenizer with a tokenizer.json.
        length: Maximum input length in tokens; the harness truncates texts on the left.
        batch_size: Texts per batch.

    Raises:
        ValueError: If the tokenizer has no tokenizer.json.
    """
    from tokenizers.processors import TemplateProcessing

    fast = transformers_tokenizer(tokenizer, length)
    if fast is None or not fast.is_fast:
        raise ValueError("lm-evaluation-harness needs a run with a tokenizer.json (data.tokenizer "
                         "bpe). This run has another tokenizer.")  # fmt: skip
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
    """Evaluate tasks, groups or tags of the harness.

    In the result, "results" contains the metrics of each task, and "samples", if requested, has
    the log-likelihoods of each question. Data that cannot be loaded raise ValueError.
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
            f"lm-evaluation-harness cannot run {', '.join(names)}: {first}. Offline, give "
            "--include DIR with .yaml files of local data."
        ) from error
    if found is None:
        raise ValueError(f"lm-evaluation-harness returned no result for {', '.join(names)}")
    return dict(found)
