"""Trainer's loss of a step against plain torch, for every kind of model; two are trained by it.

The losses are those of magneto.hf.wrapper.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

transformers = pytest.importorskip("transformers")
state = pytest.importorskip("accelerate.state")

from magneto.hf.export import wrap  # noqa: E402
from magneto.vision_language.samples import join_samples  # noqa: E402
from tests.unit.hf.kinds import wrapped  # noqa: E402
from tests.unit.vision.small import small_model  # noqa: E402

ROWS, RATE = 7, 0.05
Batch = dict[str, torch.Tensor]


@dataclass
class Kind:
    """A kind of model, data for it, and what it should compute with them.

    Attributes:
        model: Wrapped for transformers.
        data: All rows, as Trainer's collator stacks them.
        logits: Of our own model.
        targets: What the logits are compared with.
        loss: Of one number or row of logits each, not reduced; None for cross-entropy.
        whole: The mean loss, where it is not of the logits alone.
    """

    model: Any
    data: Batch
    logits: Callable[[Any, Batch], torch.Tensor]
    targets: torch.Tensor
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    whole: Callable[[Any, Batch], torch.Tensor] | None = None

    def mean_loss(self, model: Any, smoothing: float = 0.0) -> torch.Tensor:
        """Return the mean over all targets, written out."""
        if self.whole is not None:
            return self.whole(model, self.data)
        logits = self.logits(model, self.data)
        if self.loss is not None:
            return self.loss(logits, self.targets).mean()
        log_shares = logits.log_softmax(-1)
        counted = self.targets != -100
        picked = log_shares.gather(-1, self.targets.clamp(min=0)[..., None])[..., 0]
        each = -(1 - smoothing) * picked - smoothing * log_shares.mean(-1)
        return (each * counted).sum() / counted.sum()

    def trained(self, steps: int, smoothing: float = 0.0) -> Any:
        """Return a copy of the model after steps of gradient descent on all rows."""
        model = deepcopy(self.model).train()
        for _ in range(steps):
            model.zero_grad()
            self.mean_loss(model, smoothing).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:  # a table of no token types has none
                        parameter -= RATE * parameter.grad
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
    model = wrapped("MagnetoForCausalLM", positions="learned")
    ids = tokens()
    labels = some_ignored(ids)
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    data = {"input_ids": ids, "labels": labels}
    return Kind(model, data, lambda m, b: m.core(b["input_ids"]), targets)


def masked() -> Kind:
    model = wrapped("MagnetoForMaskedLM", positions="learned")
    labels = some_ignored(tokens())
    data = {"input_ids": tokens(), "labels": labels}
    return Kind(model, data, lambda m, b: m.head(m.core(b["input_ids"])), labels)


def seq2seq() -> Kind:
    model = wrapped("MagnetoForSeq2SeqLM", positions="learned")
    labels = some_ignored(tokens(8))
    read = model.prepare_decoder_input_ids_from_labels(labels)
    data = {"input_ids": tokens(), "decoder_input_ids": read, "labels": labels}
    return Kind(model, data, lambda m, b: m.core(b["input_ids"], b["decoder_input_ids"]), labels)


def classifier(classes: int, labels: torch.Tensor, problem: str, loss: Any = None) -> Kind:
    head = {"num_labels": classes, "problem_type": problem, "classifier_dropout": 0.0}
    model = wrapped("MagnetoForSequenceClassification", positions="learned", **head)

    def logits(model: Any, batch: Batch) -> torch.Tensor:
        found = model.classifier(model.core(batch["input_ids"]))
        return found[:, 0] if classes == 1 else found

    return Kind(model, {"input_ids": tokens(), "labels": labels}, logits, labels, loss)


def text_classes() -> Kind:
    return classifier(3, torch.randint(3, (ROWS,)), "single_label_classification")


def regression() -> Kind:
    return classifier(1, torch.randn(ROWS), "regression", lambda x, y: (x - y) ** 2)


def regression_of_three() -> Kind:
    return classifier(3, torch.randn(ROWS, 3), "regression", lambda x, y: (x - y) ** 2)


def several_labels() -> Kind:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -(y * x.sigmoid().log() + (1 - y) * (-x).sigmoid().log())

    labels = torch.randint(2, (ROWS, 3)).float()
    return classifier(3, labels, "multi_label_classification", loss)


def images() -> Kind:
    model = wrapped("MagnetoForImageClassification", channels=1)
    labels = torch.randint(3, (ROWS,))
    data = {"pixel_values": torch.randn(ROWS, 1, 8, 8), "labels": labels}
    return Kind(model, data, lambda m, b: m.core(b["pixel_values"]), labels)


def segmentation(ignored: int = -100) -> Kind:
    labels = torch.randint(5, (ROWS, 16, 16))
    for row in range(ROWS):  # a different number in each
        labels[row, : 1 + row] = ignored
    data = {"pixel_values": torch.randn(ROWS, 3, 16, 16), "labels": labels}

    def whole(model: Any, batch: Batch) -> torch.Tensor:
        both = [
            F.interpolate(x, (16, 16), mode="bilinear") for x in model.core(batch["pixel_values"])
        ]
        shares = [x.movedim(1, -1).log_softmax(-1) for x in both]
        right = labels.clamp(0, 4)[..., None]
        each = [-x.gather(-1, right)[..., 0] * (labels != ignored) for x in shares]
        return (each[0] + 0.4 * each[1]).sum() / (labels != ignored).sum()

    def logits(model: Any, batch: Batch) -> torch.Tensor:
        answers = model.core(batch["pixel_values"])[0]
        return F.interpolate(answers, (16, 16), mode="bilinear")

    model = wrap(small_model(head_dropout=0.0))
    return Kind(model, data, logits, labels, whole=whole)


def questions() -> Kind:
    model = wrapped("MagnetoForVisualQuestionAnswering")
    labels = torch.rand(ROWS, 4)
    data = {"pixel_values": torch.randn(ROWS, 3, 8, 8), "input_ids": tokens(6), "labels": labels}

    def whole(model: Any, batch: Batch) -> torch.Tensor:
        x = answers(model, batch)
        each = -(labels * x.sigmoid().log() + (1 - labels) * (-x).sigmoid().log())
        return each.sum(1).mean()

    return Kind(model, data, answers, labels, whole=whole)


def statements() -> Kind:
    model = wrapped("MagnetoForVisualReasoning")
    labels = torch.randint(2, (ROWS,))
    images = torch.randn(ROWS, 2, 3, 8, 8)
    data = {"pixel_values": images, "input_ids": tokens(6), "labels": labels}
    return Kind(model, data, answers, labels)


def answers(model: Any, batch: Batch) -> torch.Tensor:
    """Return what our own model says, of images with texts that are all as long."""
    images = batch["pixel_values"]
    several = 1 if images.ndim == 4 else images.shape[1]
    texts = [row.numpy() for row in batch["input_ids"] for _ in range(several)]
    return model.core(images.view(-1, 3, 8, 8), join_samples(5, paired=texts))


@pytest.fixture(autouse=True)
def forget_accumulation() -> Iterator[None]:
    """Let no later test accumulate gradients: accelerate keeps the number for the process."""
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


CLASSES = [causal, masked, seq2seq, text_classes, images, statements]
NUMBERS = [regression, regression_of_three, several_labels, segmentation, questions]
EVERY = [(make, 0.0) for make in (*CLASSES, *NUMBERS)] + [(make, 0.2) for make in CLASSES]


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


def assert_same_weights(found: Any, expected: Any) -> None:
    moved = dict(expected.named_parameters())
    for name, parameter in found.named_parameters():
        assert torch.allclose(parameter, moved[name], rtol=0, atol=1e-6), name


@pytest.mark.parametrize(("make", "smoothing"), EVERY)
def test_a_steps_micro_batches_add_up_to_the_mean(
    tmp_path: Path, make: Any, smoothing: float
) -> None:
    """By Trainer's own count of a step's labels, and its own smoothing; values and gradients."""
    kind = make()
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


@pytest.mark.parametrize(("make", "smoothing"), [(causal, 0.2), (segmentation, 0.0)])
def test_train_evaluate_and_predict(tmp_path: Path, make: Any, smoothing: float) -> None:
    kind = make()
    expected = kind.trained(2, smoothing)
    made = trainer(kind, tmp_path, label_smoothing_factor=smoothing)
    made.train()
    assert_same_weights(kind.model, expected)
    with torch.no_grad():
        loss, logits = kind.mean_loss(expected, smoothing), kind.logits(expected, kind.data)
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


def test_pixels_without_a_class_as_datasets_have_them(tmp_path: Path) -> None:
    """Trainer counts the 255 among the labels; of a step that is one batch it changes nothing."""
    kind = segmentation(255)
    expected = kind.trained(2)
    changes = {"per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1}
    trainer(kind, tmp_path, **changes).train()
    assert_same_weights(kind.model, expected)


def test_labels_of_another_shape_are_refused() -> None:
    model = regression_of_three().model
    with pytest.raises(ValueError, match=r"labels is \(7,\), but that of logits is \(7, 3\)"):
        model(tokens(), labels=torch.randn(ROWS))


def test_what_cannot_be_smoothed(tmp_path: Path) -> None:
    translations = seq2seq()
    del translations.data["decoder_input_ids"]
    for kind, error, words in (
        (translations, ValueError, "DataCollatorForSeq2Seq"),
        (segmentation(), ValueError, "label smoothing is not supported"),
        (regression(), RuntimeError, "int64"),
    ):
        with pytest.raises(error, match=words):
            trainer(kind, tmp_path, label_smoothing_factor=0.1).train()
