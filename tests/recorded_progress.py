"""A `Progress` that records its calls."""


class RecordedProgress:
    """Progress for tests.

    Attributes:
        lines: Arguments of `say`.
        work: Kinds of work given to `update`.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.work: set[str] = set()

    def update(self, what: str, done: int, total: int | None) -> None:
        self.work.add(what)

    def say(self, line: str) -> None:
        self.lines.append(line)
