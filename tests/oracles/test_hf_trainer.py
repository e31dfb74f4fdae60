"""Trainer's loss of a step against plain torch, for every kind of model; two are trained by it.

The losses are those of magneto.hf.wrapper. Magneto's learning rates are those of transformers.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")
state = pytest.importorskip("accelerate.state")

from magneto.hf.export import wrap  # noqa: E402
from magneto.training.config import TrainingConfig, learning_rate  # noqa: E402
from tests.unit.hf.kinds import wrapped  # noqa: E402
from tests.unit.vision.small import small_model  # noqa: E402

ROWS, RATE = 7, 0.05
Batch = dict[str, torch.Tensor]


@dataclass
class Kind:
    """A kind of model, data for it, and the loss that it should have.

    Attributes:
        model: Wrapped for transformers.
        data: All rows, as Trainer's collator stacks them.
        loss: torch's own mean of outputs and labels; None for cross-entropy.
        whole: The mean loss, where it is not of the outputs alone.
    """

    model: Any
    data: Batch
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    whole: Callable[[Any, Batch], torch.Tensor] | None = None

    def outputs(self, model: Any) -> torch.Tensor:
        """Return a model's logits of all rows; other tests compare them with our own model's."""
        return model(**{name: v for name, v in self.data.items() if name != "labels"}).logits

    def mean_loss(self, model: Any, smoothing: float = 0.0) -> torch.Tensor:
        """Return torch's own mean over all targets."""
        if self.whole is not None:
            return self.whole(model, self.data)
        logits, labels = self.outputs(model), self.data["labels"]
        if self.loss is not None:
            return self.loss(logits.view_as(labels), labels)
        if "CausalLM" in type(self.model).__name__:
            logits, labels = logits[:, :-1], labels[:, 1:]
        rows = logits.flatten(0, -2), labels.flatten()
        return F.cross_entropy(*rows, label_smoothing=smoothing)

    def trained(self, steps: int, smoothing: float = 0.0) -> Any:
        """Return a copy of the model after steps of gradient descent on all rows."""
        model = deepcopy(self.model).train()
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for _ in range(steps):
            optimizer.zero_grad()
            self.mean_loss(model, smoothing).backward()
            optimizer.step()
        return model.eval()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Batch:
        return {name: values[row] for name, values in self.data.items()}


def tokens(length: int = 9) -> torch.Tensor:
    return torch.randint(1, 40, (ROWS, length))


def some_ignored(labels: torch.Tensor) -> torch.Tensor:
    """Leave out a different number of labels in each row."""
    places = torch.arange(labels.shape[1])
    return labels.masked_fill(places[None] < torch.arange(len(labels))[:, None], -100)


def causal() -> Kind:
    ids = tokens()
    data = {"input_ids": ids, "labels": some_ignored(ids)}
    return Kind(wrapped("MagnetoForCausalLM", positions="learned"), data)


def masked() -> Kind:
    data = {"input_ids": tokens(), "labels": some_ignored(tokens())}
    return Kind(wrapped("MagnetoForMaskedLM", positions="learned"), data)


def seq2seq() -> Kind:
    model = wrapped("MagnetoForSeq2SeqLM", positions="learned")
    labels = some_ignored(tokens(8))
    read = model.prepare_decoder_input_ids_from_labels(labels)
    return Kind(model, {"input_ids": tokens(), "decoder_input_ids": read, "labels": labels})


# Labels of each problem of texts, and torch's loss of them.
PROBLEMS: dict[str, tuple[Callable[[], torch.Tensor], str, Any]] = {
    "classes": (lambda: torch.randint(3, (ROWS,)), "single_label_classification", None),
    "numbers": (lambda: torch.randn(ROWS), "regression", F.mse_loss),
    "threes": (lambda: torch.randn(ROWS, 3), "regression", F.mse_loss),
    "several": (lambda: torch.randint(2, (ROWS, 3)).float(), "multi_label_classification",
                F.binary_cross_entropy_with_logits),
}  # fmt: skip


def texts(problem: str) -> Kind:
    draw, kind, loss = PROBLEMS[problem]
    head = {"num_labels": 1 if problem == "numbers" else 3, "problem_type": kind}
    model = wrapped("MagnetoForSequenceClassification", positions="learned", **head,
                    classifier_dropout=0.0)  # fmt: skip
    return Kind(model, {"input_ids": tokens(), "labels": draw()}, loss)


def images() -> Kind:
    data = {"pixel_values": torch.randn(ROWS, 1, 8, 8), "labels": torch.randint(3, (ROWS,))}
    return Kind(wrapped("MagnetoForImageClassification", channels=1), data)


def segmentation(ignored: int = -100) -> Kind:
    labels = torch.randint(5, (ROWS, 16, 16))
    for row in range(ROWS):  # a different number in each
        labels[row, : 1 + row] = ignored

    def whole(model: Any, batch: Batch) -> torch.Tensor:
        maps = [F.interpolate(each, (16, 16), mode="bilinear")
                for each in model.core(batch["pixel_values"])]  # fmt: skip
        main, auxiliary = (F.cross_entropy(each, labels, ignore_index=ignored) for each in maps)
        return main + 0.4 * auxiliary

    data = {"pixel_values": torch.randn(ROWS, 3, 16, 16), "labels": labels}
    return Kind(wrap(small_model(head_dropout=0.0)), data, whole=whole)


def questions() -> Kind:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / ROWS

    data = {"pixel_values": torch.randn(ROWS, 3, 8, 8), "input_ids": tokens(6),
            "labels": torch.rand(ROWS, 4)}  # fmt: skip
    return Kind(wrapped("MagnetoForVisualQuestionAnswering"), data, loss)


def statements() -> Kind:
    data = {"pixel_values": torch.randn(ROWS, 2, 3, 8, 8), "input_ids": tokens(6),
            "labels": torch.randint(2, (ROWS,))}  # fmt: skip
    return Kind(wrapped("MagnetoForVisualReasoning"), data)


@pytest.fixture(autouse=True)
def forget_accumulation() -> Iterator[None]:
    """Let no later test accumulate gradients: accelerate keeps the number for the process."""
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


OF_TEXTS = {problem: partial(texts, problem) for problem in PROBLEMS}
CLASSES = {"causal": causal, "masked": masked, "seq2seq": seq2seq, "images": images,
           "statements": statements, "classes": OF_TEXTS.pop("classes")}  # fmt: skip
KINDS = {**CLASSES, **OF_TEXTS, "segmentation": segmentation, "questions": questions}
EVERY = [*((name, 0.0) for name in KINDS), *((name, 0.2) for name in CLASSES)]


def trainer(kind: Any, folder: Path, **changes: Any) -> Any:
    """Return a Trainer whose every step sees all rows once, in several parts."""
    values: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 2, "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": ROWS, "gradient_accumulation_steps": 4,
        "optim": "sgd", "learning_rate": RATE, "lr_scheduler_type": "constant",
        "max_grad_norm": 0, "save_strategy": "no", "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "logging_strategy": "no",
    }  # fmt: skip
    return transformers.Trainer(
        model=kind.model,
        args=transformers.TrainingArguments(**(values | changes)),
        train_dataset=kind,
        eval_dataset=kind,
    )


@pytest.mark.parametrize(("name", "smoothing"), EVERY)
def test_a_steps_micro_batches_add_up_to_the_mean(
    tmp_path: Path, name: str, smoothing: float
) -> None:
    """By Trainer's own count of a step's labels, and its own smoothing; values and gradients."""
    kind = KINDS[name]()
    model = kind.model.train()
    kind.mean_loss(model, smoothing).backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    made = trainer(kind, tmp_path, label_smoothing_factor=smoothing)
    cuts = [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    parts = [{name: values[cut] for name, values in kind.data.items()} for cut in cuts]
    parts, number = made.get_batch_samples(iter(parts), len(parts), torch.device("cpu"))
    losses = [made.compute_loss(model, part, num_items_in_batch=number) for part in parts]
    total = torch.stack(losses).sum()
    total.backward()
    assert total.item() == pytest.approx(kind.mean_loss(model, smoothing).item(), rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=0, atol=1e-6)


# Trainer counts the 255 among the labels; of a step that is one batch it changes nothing.
WHOLE = {"per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize(
    ("make", "smoothing", "changes"),
    [(causal, 0.2, {}), (segmentation, 0.0, {}), (partial(segmentation, 255), 0.0, WHOLE)],
    ids=["causal", "segmentation", "pixels without a class as datasets have them"],
)
def test_train_evaluate_and_predict(
    tmp_path: Path, make: Any, smoothing: float, changes: dict[str, Any]
) -> None:
    kind = make()
    expected = kind.trained(2, smoothing)
    made = trainer(kind, tmp_path, label_smoothing_factor=smoothing, **changes)
    made.train()
    moved = dict(expected.named_parameters())
    for name, parameter in kind.model.named_parameters():
        assert torch.allclose(parameter, moved[name], rtol=0, atol=1e-6), name
    with torch.no_grad():
        loss, logits = kind.mean_loss(expected, smoothing), kind.outputs(expected)
    assert made.evaluate()["eval_loss"] == pytest.approx(loss.item(), rel=1e-5)
    found = made.predict(kind)
    assert torch.allclose(torch.tensor(found.predictions).view_as(logits), logits, atol=1e-5)
    assert found.metrics["test_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (found.label_ids == kind.data["labels"].numpy()).all()


@pytest.mark.parametrize("made_by", ["FSDP", "peft"])
def test_a_class_made_of_ours_is_shifted_too(tmp_path: Path, made_by: str) -> None:
    """Trainer asks by name, and FSDP gives the class of a model another; peft wraps it."""
    kind = causal()
    expected = kind.mean_loss(kind.model, 0.2).item()
    if made_by == "FSDP":
        kind.model.__class__ = type("FSDPModel", (type(kind.model),), {})
    else:
        peft = pytest.importorskip("peft")
        kind.model = peft.get_peft_model(kind.model, peft.LoraConfig(target_modules=["qkv_proj"]))
    found = trainer(kind, tmp_path, label_smoothing_factor=0.2).evaluate()
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_labels_of_another_shape_are_refused() -> None:
    model = texts("threes").model
    with pytest.raises(ValueError, match=r"labels is \(7,\), but that of logits is \(7, 3\)"):
        model(tokens(), labels=torch.randn(ROWS))


def test_what_cannot_be_smoothed(tmp_path: Path) -> None:
    translations = seq2seq()
    del translations.data["decoder_input_ids"]
    for kind, error, words in (
        (translations, ValueError, "DataCollatorForSeq2Seq"),
        (segmentation(), ValueError, "label smoothing is not supported"),
        (texts("numbers"), RuntimeError, "int64"),
    ):
        with pytest.raises(error, match=words):
            trainer(kind, tmp_path, label_smoothing_factor=0.1).train()


@pytest.mark.parametrize("warmup", [1, 4])
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        ({"schedule": "constant"}, "constant_with_warmup", {}),
        ({"schedule": "linear"}, "linear", {}),
        ({"schedule": "cosine", "final_learning_rate": 0.2}, "cosine_with_min_lr", {"min_lr": 0.2}),
        ({"power": 2.0, "final_learning_rate": 0.2}, "polynomial", {"power": 2.0, "lr_end": 0.2}),
        ({"schedule": "inverse_sqrt"}, "inverse_sqrt", {}),
    ],
    ids=str,
)
def test_schedules_are_those_of_transformers(
    ours: dict, theirs: str, options: dict[str, float], warmup: int
) -> None:
    """At every step, the last included: the final rate follows the last step."""
    settings = TrainingConfig(steps=10, warmup_steps=warmup, learning_rate=0.8, **ours)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    schedule = transformers.get_scheduler(theirs, optimizer, warmup, 10, options)
    for step in range(11):
        assert learning_rate(settings, step) == pytest.approx(schedule.get_last_lr()[0]), step
        optimizer.step()
        schedule.step()
