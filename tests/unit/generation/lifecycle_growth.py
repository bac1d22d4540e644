"""What one look of the operator may add to a record, and what it ended."""

from kvtier.generation.case import Case
from kvtier.generation.entry import Retirement
from kvtier.generation.record import Record


def check_growth(before: Record, case: Case, after: Record) -> None:
    """Raises AssertionError for more generations or tokens than a look has reason to make."""
    more = len(after.generations) - len(before.generations)
    assert more <= 1 + len(case.offered)
    had = {entry.id: entry.has_access for entry in before.generations}
    # Each may be renewed, and one that comes back gets another one.
    back = sum(entry.has_access and not had.get(entry.id, True) for entry in after.generations)
    assert _tokens(after) - _tokens(before) <= len(after.generations) + max(more, 0) + back


def _tokens(record: Record) -> int:
    return sum(len(list(entry.tokens())) for entry in record.generations)


def ended(record: Record) -> set[str]:
    """Retired tokens that are good for nothing any more."""
    retired = [each for entry in record.generations for each in entry.retired]
    return {each.token for each in retired if each.state is not Retirement.VALID}
