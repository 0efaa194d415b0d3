"""All targets, by name."""

from tests.proof.fuzz import decoders, differential, filters, formats, java
from tests.proof.fuzz.target import Target

_ALL = (*decoders.TARGETS, *formats.TARGETS, *differential.TARGETS, *filters.TARGETS, *java.TARGETS)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
