"""The benchmarks measure the product's own step, compare like with like, and lose nothing."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("transformers")

from benchmarks import bench, turns
from benchmarks.bench_cases import ANSWERS, FIELDS, case_of
from benchmarks.bench_contenders import LIMIT, PEERS, contenders
from benchmarks.bench_product import build_task, product_batch
from benchmarks.bench_speech_peers import plain_loss
from benchmarks.contenders import CASES, CONTENDERS, build
from benchmarks.decoding import Entry, beam_search, check
from benchmarks.products import products_of, replay
from magneto.functional.transducer import transducer_loss
from magneto.training.model import count_flops

CASE = CASES["tiny"]
CPU = torch.device("cpu")


@pytest.mark.parametrize("field", FIELDS)
def test_the_products_alone_are_those_of_the_products_step(field: str) -> None:
    """By torch's own counter, and what is replayed makes as many operations."""
    layers = 2 if field == "translation" else 1  # of both stacks together
    case = replace(case_of(field, "tiny"), layers=layers)
    task, batch = build_task(case, "sub")[0], product_batch(case)
    products = products_of(task, batch)
    with sdpa_kernel(SDPBackend.MATH):
        counted, _ = count_flops(task, batch)
    with FlopCounterMode(display=False) as counter:
        replay(products)()
    assert sum(product.flops for product in products) == pytest.approx(counted)
    assert counter.get_total_flops() == pytest.approx(counted)


def first_losses(field: str, names: list[str]) -> dict[str, float]:
    """Steps of peers that are installed, at the tiny shape; every one must learn."""
    found = {}
    for name in names:
        try:
            step, _ = contenders(field)[name](case_of(field, "tiny"))
        except ImportError:
            continue
        losses = [float(step()) for _ in range(3)]
        assert losses[2] < losses[0], name
        found[name] = losses[0]
    return found


@pytest.mark.parametrize("field", FIELDS)
def test_peers_learn_the_same_batch(field: str) -> None:
    """Their first losses are about as high as ours: nobody's loss is another one."""
    found = first_losses(field, ["magneto pre", *PEERS[field]])
    own = found.pop("magneto pre")
    assert "transformers" in " ".join(found)
    for name, loss in found.items():
        # Binary cross-entropy is a sum over a question's answers for some, a mean for others.
        scale = ANSWERS if own > 100 > loss else 1
        assert loss * scale == pytest.approx(own, rel=0.25), name


def test_the_plain_transducer_loss_is_the_transducers() -> None:
    torch.manual_seed(1)
    for frames, labels in ((5, 3), (3, 5), (1, 2)):
        logits = torch.randn(2, frames, labels + 1, 7, requires_grad=True)
        targets = torch.randint(1, 7, (2, labels))
        sizes = torch.full((2,), frames), torch.full((2,), labels)
        (mine,) = torch.autograd.grad(plain_loss(logits, targets), logits)
        loss = transducer_loss(logits, targets, *sizes, 0).mean()
        (theirs,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(plain_loss(logits, targets), loss)
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


class Threads:
    """In the place of processes, which would have to import everything: threads of this one."""

    Pipe = staticmethod(Pipe)

    def set_forkserver_preload(self, names: list[str]) -> None:
        assert names == ["benchmarks.preload"]

    def Process(self, target: Any, args: Any) -> Any:
        own = Connection(os.dup(args[0].fileno()))  # as a process has; the other end is closed
        thread = Thread(target=target, args=(own, *args[1:]))
        return SimpleNamespace(start=thread.start, join=thread.join, kill=lambda: None)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(turns.multiprocessing, "get_context", lambda kind: Threads())
    monkeypatch.setattr(turns, "TURN", 0.0)
    yield
    torch.set_num_threads(threads)


def absent(case: Any) -> Any:
    raise ModuleNotFoundError("No module named 'torchscale'", name="torchscale.architecture")


def run(folder: Path, *words: str) -> dict[str, Any]:
    given = ["--fields", "causal-lm", "--shapes", "tiny", "--seconds", "0", "--threads", "1"]
    bench.main([*given, "--commit", "abc", "--out", str(folder), *words])
    return json.loads((folder / "bench-cpu.json").read_text())


def test_a_run_measures_says_what_is_missing_and_goes_on(
    tmp_path: Path, in_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEERS["causal-lm"], "torchscale", absent)
    kept = "plain torch, freed memory kept"
    only = ["--only", "magneto sub", LIMIT, kept, "torchscale"]
    (cell,) = run(tmp_path, *only)["cells"].values()
    rows = {row["contender"]: row for row in cell["rows"]}
    assert set(rows) == {"magneto sub", LIMIT, kept}
    assert cell["left_out"] == {"torchscale": "not installed: pip install torchscale"}
    for row in rows.values():
        assert row["steps"] >= 5
        assert 0 < row["quartile_1_ms"] <= row["median_ms"] <= row["quartile_3_ms"]
    assert rows["magneto sub"]["median_ms"] > rows[LIMIT]["median_ms"]
    page = (tmp_path / "bench-cpu.md").read_text()
    assert "| torchscale | not installed: pip install torchscale |" in page

    monkeypatch.setattr(bench, "take_turns", lambda *given, **named: pytest.fail("measured again"))
    again = run(tmp_path, *only, "--profile")["cells"]["causal-lm, tiny"]
    assert again["rows"] == cell["rows"] and again["profile"]["ms"] > 0


def parameters(name: str) -> int:
    return sum(p.numel() for p in build(name, CASE, CPU).parameters())


def test_contenders_of_one_placement_have_the_same_parameters() -> None:
    names = ("magneto pre", "torch nn.TransformerEncoder", "transformers GPT-2", "nanoGPT style")
    counts = {parameters(name) for name in names}
    assert len(counts) == 1
    pytest.importorskip("x_transformers")
    missing = counts.pop() - parameters("x-transformers")
    # Four bias vectors of attention per layer, and a bias for each layer norm.
    assert missing == CASE.width * (4 * CASE.layers + 2 * CASE.layers + 1)


@pytest.mark.parametrize("name", CONTENDERS)
def test_contenders_are_causal(name: str) -> None:
    pytest.importorskip("x_transformers")
    if name == "torchscale":
        pytest.importorskip("torchscale.architecture.decoder")
    model = build(name, CASE, CPU).eval()
    tokens = torch.randint(CASE.vocab_size, (2, CASE.length))
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % CASE.vocab_size
    with torch.no_grad():
        first, second = model(tokens), model(changed)
    assert first.shape == (2, CASE.length, CASE.vocab_size)
    torch.testing.assert_close(first[:, :20], second[:, :20], atol=1e-5, rtol=0)
    assert (first[:, 20:] - second[:, 20:]).abs().max() > 1e-2


class Scorer:
    def score(self, sources: list, found: Any) -> Any:
        return found


def test_other_hypotheses_of_a_beam_search_are_an_error() -> None:
    def entries(difference: float) -> list[Entry]:
        names = {"transformers Marian": 0.0, "magneto": difference}
        return [Entry(name, 1, Scorer(), [[0]], found=[[-1.0 - d]]) for name, d in names.items()]

    check(entries(0.0))
    check(entries(1e-6))
    with pytest.raises(RuntimeError, match="differ in score by"):
        check(entries(1e-3))


def test_contenders_of_beam_search_write_the_same_hypotheses() -> None:
    """On a CPU; `make gpu` times them."""
    rows = beam_search(CASE, CPU, [1, 3], tokens=4, rounds=1)
    assert [(row["contender"], row["batch"], row["turns"]) for row in rows] == [
        (name, batch, 1) for batch in (1, 3) for name in ("transformers Marian", "magneto")
    ]
    assert all(row["sentences_per_second"] > 0 for row in rows)
