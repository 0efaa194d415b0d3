"""The wheel has everything that a user needs."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
# Seconds. With an empty cache on a busy machine, pip may take many minutes.
_TIMEOUT = 3600

PROGRAM = """
import sys
from cloudevents.core.v1.event import CloudEvent
import ce_nats
assert "pyspark" not in sys.modules and "typer" not in sys.modules
event = CloudEvent({"source": "/s", "type": "t", "subject": "\\u20ac"}, {"a": 1})
received = ce_nats.from_nats_message(ce_nats.to_nats_message(event, "a"))
assert received.get_subject() == "\\u20ac" and received.get_data() == {"a": 1}
print(ce_nats.__file__, ce_nats.__version__)
"""

TEST = """
def test_fixtures(nats_server, jetstream_server):
    assert nats_server.is_running and jetstream_server.is_running
"""


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_has_all_files_of_the_package(tmp_path: Path) -> None:
    """And the cases, the jar, and nothing of the sources of the jar."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    with ZipFile(next(tmp_path.glob("ce_nats-*.whl"))) as wheel:
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    paths = [path for path in (ROOT / "ce_nats").rglob("*") if path.is_file() and path.suffix != ".java"]
    expected = {path.relative_to(ROOT).as_posix() for path in paths if not {"__pycache__", "stubs"} & {*path.parts}}
    expected |= {f"ce_nats/spec_fixtures/{path.name}" for path in (ROOT / "spec-fixtures").iterdir()}
    assert files == expected | {"_ce_nats_command.py"}
    assert {"ce_nats/py.typed", "ce_nats/spark/jvm/ce-nats.jar"} <= files


@pytest.mark.long
def test_built_wheel_works_in_a_new_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("ce_nats-*.whl")
    assert list(tmp_path.glob("ce_nats-*.tar.gz"))
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cli,testing]", cwd=tmp_path)
    assert str(tmp_path / "env") in run(python, "-c", PROGRAM, cwd=tmp_path)
    table = run(tmp_path / "env" / "bin" / "ce-nats", "conformance", cwd=tmp_path)
    assert "percent-encoding" in table
    (tmp_path / "test_fixtures.py").write_text(TEST)
    assert "1 passed" in run(python, "-m", "pytest", "-q", "-W", "error", "test_fixtures.py", cwd=tmp_path)
    (jar,) = (tmp_path / "env").glob("lib/*/site-packages/ce_nats/spark/jvm/*")
    assert jar.name == "ce-nats.jar"
    with ZipFile(jar) as classes:
        assert "io/cenats/spark/Catalog.class" in classes.namelist()
    (typed,) = (tmp_path / "env").glob("lib/*/site-packages/ce_nats/py.typed")
    assert typed.is_file()
