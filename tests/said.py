"""A `Progress` that remembers."""


class Said:
    """Keeps what it is told.

    Attributes:
        lines: That were said.
        work: Kinds of work that were shown.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.work: set[str] = set()

    def update(self, what: str, done: int, total: int | None) -> None:
        """Remember a kind of work."""
        self.work.add(what)

    def say(self, line: str) -> None:
        """Remember a line."""
        self.lines.append(line)
