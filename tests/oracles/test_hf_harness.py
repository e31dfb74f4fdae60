"""Our scores are lm-evaluation-harness's own, on the same model and questions.

Skipped without lm-eval: pip install 'foundation-transformers[eval]'.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs foundation-transformers[eval]")
pytest.importorskip("transformers")

from magneto.cli import main
from magneto.data.tokenizer import ByteTokenizer, load_tokenizer, train_bpe
from magneto.hf.export import check_tasks, harness_model, harness_scores, task_manager
from magneto.language.config import LanguageModelConfig
from magneto.language.in_context import (
    answer_credit,
    encode_items,
    log_likelihoods,
    prepend_demonstrations,
)
from magneto.language.models import LanguageModel
from magneto.language.suites import SUITES, Item, parse_records
from tests.unit.nn.grids import shaken

LENGTH = 4000
SHOTS = (0, 1, 4)
# What the harness's own task files say, with local data and our separator.
YAML = {
    "hellaswag": """
doc_to_text: "{{query}}"
doc_to_target: "{{label}}"
doc_to_choice: "{{choices}}"
""",
    "winogrande": """
doc_to_text: "{{ {'1': 0, '2': 1}[answer] }}"
doc_to_target: "{{ sentence.split('_')[1].strip() }}"
doc_to_choice: "{{ [sentence.split('_')[0] + option1, sentence.split('_')[0] + option2] }}"
""",
}
COMMON = """
task: local_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: "{questions}", train: "{train}"}}}}
output_type: multiple_choice
validation_split: validation
training_split: train
fewshot_split: train
fewshot_delimiter: "</s>"
fewshot_config: {{sampler: first_n}}
metric_list: [{{metric: acc}}]
"""


def made_up(name: str, count: int) -> list[dict[str, Any]]:
    """Return questions of a suite's shape, of varied lengths."""
    words = "the small dog saw a red house near water and ran home".split()  # noqa: SIM905
    rows = []
    for n in range(count):
        some = [words[(n * 7 + k * 5) % len(words)] for k in range(3 + n % 6)]
        text = " ".join(some)
        if name == "hellaswag":
            choices = [" ".join(some[k:]) + "." * (k + 1) for k in range(3)]
            rows.append({"query": f"A man: {text}", "choices": choices, "label": n % 3})
        else:
            row = {"sentence": f"It is {text} since _ was {some[0]} {text}.", "option1": some[1]}
            rows.append({**row, "option2": "Ann Lee", "answer": str(1 + n % 2)})
    return rows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    texts = [str(row) for name in YAML for row in made_up(name, 14)]
    train_bpe(texts, 400, path)
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def model(tokenizer) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "positions": "rotary"}
    config = LanguageModelConfig(**sizes, vocab_size=tokenizer.vocab_size)
    return shaken(LanguageModel(config), 0.3)


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    """Write a task file with the first four records for training, the others to ask."""
    for split, part in (("train", rows[:4]), ("questions", rows[4:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    paths = {split: folder / f"{split}.jsonl" for split in ("train", "questions")}
    (folder / f"{name}.yaml").write_text(COMMON.format(name=name, **paths) + YAML[name])
    return folder


def ours(
    model: LanguageModel, tokenizer: Any, items: list[Item], num_fewshot: int
) -> list[list[float]]:
    """Score with our own code; the first records are the demonstrations, as the task file says."""
    shown = tokenizer.encode([item.solved for item in items[:4]])[:num_fewshot]
    encoded = encode_items(items[4:], tokenizer)
    joined = [prepend_demonstrations(each, shown, tokenizer.end, LENGTH) for each in encoded]
    assert all(fitted == num_fewshot and whole for _, fitted, whole in joined)
    return log_likelihoods(model, [texts for texts, _, _ in joined])


@pytest.mark.parametrize("name", list(YAML))
def test_scores_are_the_harness_s_own(
    name: str, tmp_path: Path, model: LanguageModel, tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = made_up(name, 14)
    items = parse_records(SUITES[name], rows, "test")
    manager = task_manager(write(tmp_path, name, rows), builtin=False)
    wrapped = harness_model(model, tokenizer, LENGTH)
    task = f"local_{name}"
    for num_fewshot in SHOTS:
        found = harness_scores(wrapped, [task], num_fewshot, 1, manager, samples=True)
        samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
        theirs = [[float(r[0][0]) for r in sample["resps"]] for sample in samples]
        mine = ours(model, tokenizer, items, num_fewshot)
        pairs = [p for a, b in zip(mine, theirs, strict=True) for p in zip(a, b, strict=True)]
        difference = max(abs(a - b) for a, b in pairs)
        print(f"{name}, {num_fewshot} shots, {len(pairs)} options: largest difference "
              f"{difference:.1e} "
              f"nats of {max(abs(b) for _, b in pairs):.0f}")  # fmt: skip
        assert all(a == pytest.approx(b, rel=1e-5, abs=1e-3) for a, b in pairs)
        right = [answer_credit(v, item.answer) for v, item in zip(mine, items[4:], strict=True)]
        assert sum(right) / len(right) == pytest.approx(found["results"][task]["acc,none"])
        assert len({round(value, 3) for value, _ in pairs}) > len(pairs) / 2


def test_a_text_that_begins_with_the_separator_gets_no_second(
    model: LanguageModel, tokenizer: Any
) -> None:
    wrapped = harness_model(model, tokenizer, LENGTH)
    end = tokenizer.end
    assert wrapped.tok_encode("a</s>b")[0] == end
    assert wrapped.tok_encode("a</s>b").count(end) == 2
    assert wrapped.tok_encode("</s>a").count(end) == 1


def test_unknown_tasks_and_missing_data(
    tmp_path: Path, model: LanguageModel, tokenizer: Any
) -> None:
    folder = write(tmp_path, "winogrande", made_up("winogrande", 14))
    manager = task_manager(folder, builtin=False)
    with pytest.raises(ValueError, match=r"no task 'local_winogrand', .* did you mean local"):
        check_tasks(["local_winogrand"], manager)
    check_tasks(["local_winogrande"], manager)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        harness_model(model, ByteTokenizer(), LENGTH)
    (tmp_path / "questions.jsonl").unlink()
    wrapped = harness_model(model, tokenizer, LENGTH)
    with pytest.raises(ValueError, match="cannot run local_winogrande: "):
        harness_scores(wrapped, ["local_winogrande"], 0, 1, manager)


def test_questions_are_what_the_harness_s_winogrande_has() -> None:
    from lm_eval.tasks.winogrande import preprocess_winogrande as theirs

    rows = made_up("winogrande", 14)
    for row, item in zip(rows, parse_records(SUITES["winogrande"], rows, "test"), strict=True):
        assert list(item.contexts) == theirs.doc_to_choice(row)
        assert item.endings[0] == " " + theirs.doc_to_target(row)
        assert item.answer == theirs.doc_to_text(row)


def test_the_command_gives_their_tasks_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = made_up("winogrande", 14)
    text = "\n\n".join(f"{row['sentence']} {n}. " * 40 for n, row in enumerate(rows * 15))
    (tmp_path / "book.txt").write_text(text)
    train = f"train causal-lm/tiny --data {tmp_path}/book.txt --out {tmp_path}/run"
    small = """--model.width 32 --model.layers 2 --model.heads 4 --model.ffn_width 48
    --data.vocab_size 300 --data.max_length 256 --training.batch_size 4 --training.steps 1
    --training.tensorboard false --training.device cpu"""
    assert main([*train.split(), *small.split()]) == 0
    folder = write(tmp_path, "winogrande", rows)
    ask = f"evaluate {tmp_path}/run --include {folder} --num-fewshot 0,2 --json"
    ask += f" --data {folder}/questions"
    capsys.readouterr()
    assert main([*f"{ask}.jsonl --tasks winogrande,local_winogrande".split()]) == 0
    found = json.loads(capsys.readouterr().out)
    zero, two = found["scores"]
    assert (zero["items"], two["demonstrations"]) == (10, 2.0)
    theirs = {
        num_fewshot: found["harness"][num_fewshot]["local_winogrande"]["acc,none"]
        for num_fewshot in "02"
    }
    # Without demonstrations the two are one question; with them, other ones are drawn.
    assert theirs["0"] == pytest.approx(zero["by_sum"]["mean"])
    assert 0 <= theirs["2"] <= 1
    assert main([*f"{ask}.jsonl --tasks local_winogrande".split()]) == 0
