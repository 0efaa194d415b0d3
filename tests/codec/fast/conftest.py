from collections.abc import Iterator

import pytest

from tests.support.fast_path import CONVERTERS


@pytest.fixture(autouse=True)
def compiled_at_once() -> Iterator[None]:
    """Compile functions at the first use of names, and leave none to other tests."""
    with pytest.MonkeyPatch.context() as patch:
        for converters in CONVERTERS:
            converters.clear()
            patch.setattr(converters, "uses_before_compile", 1)
        yield
    for converters in CONVERTERS:
        converters.clear()
