"""The line a minute, where LMCache has no metrics."""

from kvtier_lmcache.counters import LINE_SECONDS, Counts, Lines


def test_a_line_a_minute_says_what_changed_and_nothing_where_nothing_did() -> None:
    now, said = [0.0], list[str]()
    counts = {"a:1/p": Counts(), "b:1/p": Counts()}
    lines = Lines(said.append, clock=lambda: now[0])
    counts["a:1/p"].hits += 3
    lines.write(counts)
    assert said == []
    now[0] = LINE_SECONDS
    lines.write(counts)
    assert said == ["rank a:1/p, last minute: hits 3"]
    now[0] = 2 * LINE_SECONDS
    counts["a:1/p"].misses += 1
    counts["b:1/p"].failures += 1
    lines.write(counts)
    lines.write(counts)
    assert said[1:] == ["rank a:1/p, last minute: misses 1", "rank b:1/p, last minute: failures 1"]
