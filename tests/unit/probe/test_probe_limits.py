"""A probe lives with the limits that kvtier gives a rank's clients."""

import pytest
from probed_ranks import NewRanks
from valkey_servers import BINARIES

from kvtier.probe.worker import run_probe
from kvtier.render.valkey_conf import PIPELINE

SIZE = 8 << 20
"""More than a kernel takes of it at once: the server always has something to send."""


@pytest.mark.parametrize("version", [*BINARIES])
def test_many_values_are_read_within_the_output_buffer_limit(
    make_ranks: NewRanks, version: str
) -> None:
    limit = f"normal {2 * PIPELINE * SIZE} {PIPELINE * SIZE} 30"
    ranks = make_ranks(1, version=version, **{"client-output-buffer-limit": limit})
    # Far more values than the limit holds: Valkey 9.1.2 counts what it has sent long ago.
    found = run_probe(ranks.config(value_bytes=SIZE, max_bytes=300 * SIZE, seconds=20.0))
    assert found.troubles == ()
    assert found.ranks[0].bytes_timed > 8 * PIPELINE * SIZE
    assert ranks.info(0, "stats")["client_output_buffer_limit_disconnections"] == 0
