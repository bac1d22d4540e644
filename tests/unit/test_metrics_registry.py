"""What every process of kvtier shows of itself."""

from kvtier import __version__
from kvtier.metrics import new_registry


def test_a_process_shows_its_version_and_its_memory() -> None:
    registry = new_registry()
    assert registry.get_sample_value("kvtier_build_info", {"version": __version__}) == 1
    assert registry.get_sample_value("process_resident_memory_bytes")
