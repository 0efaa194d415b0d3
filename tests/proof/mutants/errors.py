"""Errors of mutation testing."""


class ProofError(Exception):
    """The tests cannot judge mutants."""
