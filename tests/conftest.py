"""Makes the suites in this folder importable from the test modules below it."""
