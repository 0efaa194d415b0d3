import pytest

from ce_nats.aio.jetstream import configure_stream


@pytest.fixture
async def batched(js, subject):
    """A stream with fast ingest on the subjects ``subject`` and ``subject.>``."""
    name = subject.replace(".", "_")
    await js.add_stream(name=name, subjects=[subject, f"{subject}.>"], storage="memory", allow_batched=True)
    yield name
    await js.delete_stream(name)


@pytest.fixture
async def batches(js, stream):
    """A stream that allows atomic batches."""
    await configure_stream(js, stream, allow_atomic=True)
    return stream
