"""What a person gets for bad input: lines on standard error and exit code 2."""


class BadInput(ValueError):
    """Input that cannot be used; ``lines`` each name a field or file, and the fix."""

    def __init__(self, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
