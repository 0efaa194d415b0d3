from datetime import datetime, timedelta, timezone

import polars
import pytest

from ce_nats.aio import jetstream

pytestmark = [pytest.mark.spark, pytest.mark.long]


async def test_late_and_invalid_events_are_written_separately(start, js, make_event, tmp_path):
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    now = datetime.now(timezone.utc)
    hour = now.replace(minute=0, second=0, microsecond=0)

    async def publish(number, time, **attributes):
        event = make_event(number, **attributes)
        event._attributes["time"] = time
        await jetstream.publish(js, event, "orders.new")

    def read(table):
        return polars.read_parquet(f"{tmp_path}/{table}/*/*.parquet", hive_partitioning=False)

    await publish(1, now)
    await publish(2, now, type="com.example.other")
    await publish(3, now - timedelta(hours=2))
    await publish(4, now + timedelta(hours=2))
    await js.publish("orders.new", b"not an event")
    await publish(5, now)
    program = start("examples/spark_hourly_counts.py", "--stream", "ORDERS", "--to", tmp_path, "--once")
    output = await program.until_exit()

    counts = read("hourly").group_by("hour", "type").agg(polars.col("count").max()).sort("hour", "type").to_dicts()
    assert [(row["hour"].astimezone(timezone.utc), row["type"], row["count"]) for row in counts] == [
        (hour, "com.example.other", 1),
        (hour, "com.example.test", 2),
    ]
    assert "2 late\n1 bad\n" in output
    assert sorted(read("late")["ce_id"]) == ["event 3", "event 4"]
    assert read("bad").select("sequence", "data", "ce_error").rows() == [(5, b"not an event", "not-a-cloudevent")]
