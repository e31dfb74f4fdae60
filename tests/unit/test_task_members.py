"""A task says only what it alone knows: in few members, which are the same for all."""

from magneto.recipe import load_recipe
from magneto.tasks import TASKS
from magneto.training.task import Task, strategy_error

# Of what a task may define: methods, and what it says of itself.
MOST_METHODS, MOST_ATTRIBUTES = 16, 6


def test_members_are_few() -> None:
    own = [name for name in vars(Task) if not name.startswith("_")]
    methods = [name for name in own if callable(getattr(Task, name))]
    said = {*own, *Task.__annotations__} - set(methods)
    assert len(methods) <= MOST_METHODS, methods
    assert len(said) <= MOST_ATTRIBUTES, said


def test_shards_are_refused_by_those_that_need_a_whole_model() -> None:
    refused = set()
    for name in TASKS:
        task = load_recipe(f"{name}/tiny").build_task()
        assert not any(strategy_error(task, kind) for kind in ("auto", "none", "ddp")), name
        said = [strategy_error(task, kind) for kind in ("fsdp", "hybrid")]
        assert all(said) == any(said)
        if said[0]:
            assert "training.distributed fsdp: " in said[0] and "use ddp" in said[0]
            refused.add(name)
    assert refused == {"transducer", "segmentation", "image-tokenizer", "image-text-retrieval"}
