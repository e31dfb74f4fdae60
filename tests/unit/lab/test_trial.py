"""A trial agrees with training, and stops when its time is over."""

from collections.abc import Callable

import pytest

from magneto.lab import diagnosis
from magneto.lab.diagnosis import run_trial
from magneto.recipe import Recipe

Small = Callable[..., Recipe]


def test_it_stops_when_the_time_is_over_and_says_what_is_missing(small: Small) -> None:
    found = run_trial(small(training__steps=10**6), 1e-9)
    assert found.status == "has not learned yet"
    assert found.steps <= 3 and found.of_steps == 10**6, "no time: hardly a step"
    assert found.baseline is not None and found.score is not None and found.threshold is not None
    assert found.score > found.threshold and "does not beat the trivial baseline" in found.reason
    assert f"trivial baseline {found.baseline:.4g}" in found.text
    wild = small(training__steps=10**6, training__learning_rate=3.0, training__warmup_steps=0,
                 training__log_every=10)  # fmt: skip
    found = run_trial(wild, 1e-9)
    assert found.status == "has not learned yet" and found.steps < 10, "too few to diverge"


def test_a_recipe_that_ends_before_is_judged_at_its_end(small: Small) -> None:
    made = small(
        training__steps=60, training__learning_rate=1e-2, training__batch_size=16, model__width=32
    )
    found = run_trial(made, 1e6)
    assert (found.status, found.steps, found.reason) == ("learned", 60, "")
    assert found.score is not None and found.threshold is not None
    assert found.score < found.threshold


def test_what_diverges_says_so(small: Small) -> None:
    found = run_trial(small(training__learning_rate=1e30, training__warmup_steps=0), 1e6)
    assert found.status == "diverged" and found.text.startswith("diverged within ")
    assert found.reason in found.text


def test_asked_to_stop_it_gives_no_verdict(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    signal = diagnosis.Stop("interrupted", "asked to stop by a signal")
    monkeypatch.setattr(diagnosis, "Stop", lambda *_: signal)
    with pytest.raises(KeyboardInterrupt):
        run_trial(small(), 1e-9)
