"""Fixtures for tests of large data: a bucket of an object store, and a claim check for it."""

import pytest

from ce_nats.aio import ClaimCheck


@pytest.fixture
async def bucket(js, subject):
    name = subject.replace(".", "_")
    await js.create_object_store(name, storage="memory")
    yield name
    await js.delete_object_store(name)


@pytest.fixture
async def store(js, bucket):
    return await js.object_store(bucket)


@pytest.fixture
def claim_check(js, bucket):
    return ClaimCheck(js, bucket, over=1000)


@pytest.fixture
def state(js, bucket):
    """Return the state of the bucket's stream."""

    async def get():
        return (await js.stream_info(f"OBJ_{bucket}", subjects_filter=">")).state

    return get
