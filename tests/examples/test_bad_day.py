import re

import pytest

from tests.examples.conftest import EXAMPLES

SCRIPT = "examples/bad_day.py"
GUIDE = EXAMPLES.parent / "docs/guides/bad-day.md"


@pytest.mark.long
async def test_each_event_is_handled_once_and_the_bad_ones_are_dead_lettered(start):
    """As in the guide, which shows an outage of ten minutes."""
    log = await start(SCRIPT, 9).until_exit()
    (shown,) = re.findall(r"```text\n(1000 of .*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert log.endswith(shown)
    assert "Traceback" not in log.partition("the database is back")[0]
