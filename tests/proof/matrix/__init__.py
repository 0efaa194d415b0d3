"""Run tests on every supported version: ``python -m tests.proof.matrix``, as ``make matrix`` does."""
