"""All targets, by name."""

from tests.proof.fuzz import decoders, differential
from tests.proof.fuzz.target import Target

TARGETS: dict[str, Target] = {target.name: target for target in (*decoders.TARGETS, *differential.TARGETS)}
