"""What has been read of a pod so far."""

from dataclasses import dataclass, field

from kvtier.generation.pods.engines import FIELDS
from kvtier.generation.pods.safe import LONGEST_REASON, short

LONGEST_FIELD = 253
"""As in the API: a longer name is no tier's."""
ARGUMENTS = "arguments"
"""The name under which it is told that arguments as a whole cannot be read."""


@dataclass(slots=True)
class Reading:
    """Names are either known (a field or a setting) or unreadable, never both."""

    fields: dict[str, str | int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def know(self, name: str, value: str | int) -> None:
        if isinstance(value, str) and name in FIELDS and not 0 < len(value) <= LONGEST_FIELD:
            self.doubt(name, f"{short(value) or 'it'} has not 1 to {LONGEST_FIELD} characters")
            return
        self.unreadable.pop(name, None)
        if name in FIELDS:
            self.fields[name] = value
        else:
            self.settings[name] = str(value)

    def doubt(self, name: str, why: str) -> None:
        self.fields.pop(name, None)
        self.settings.pop(name, None)
        self.unreadable[name] = short(why, LONGEST_REASON)

    def knows(self, name: str) -> bool:
        return name in self.fields or name in self.settings

    def merge(self, other: "Reading", *, whose: str) -> None:
        """Keep what both say alike; what they say differently cannot be told."""
        told, others = self.told(), other.told()
        doubts = self.unreadable | other.unreadable
        for name in sorted(told.keys() | others.keys()):
            if told.get(name) != others.get(name):
                one, two = told.get(name, "nothing"), others.get(name, "nothing")
                doubts[name] = f"{whose} say {short(str(one))} and {short(str(two))}"
        for name, why in doubts.items():
            self.doubt(name, why)

    def told(self) -> dict[str, str | int]:
        """All that is known."""
        return {**self.settings, **self.fields}
