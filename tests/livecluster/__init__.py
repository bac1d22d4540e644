"""A real cluster with kvtier installed, as the suites of tests/cluster and tests/bench use it."""
