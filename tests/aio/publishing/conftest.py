import pytest


@pytest.fixture
async def batched(js, subject):
    """A stream with fast ingest on the subjects ``subject`` and ``subject.>``."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject, f"{subject}.>"], storage="memory", allow_batched=True)
    yield name
    await js.delete_stream(name)
