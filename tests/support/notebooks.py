"""
Execute the notebooks of ``examples/``, each in a separate kernel and directory.

``python -m tests.support.notebooks`` updates the outputs in the repository.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# Standard error of cells with this tag is discarded, because they start a program that logs.
LOGS = "logs"
SECONDS = 600  # for a cell


def executed(path):
    """Execute a notebook, and return it with new outputs, without paths and logs of this machine."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"IPYTHONDIR": directory, "JUPYTER_CONFIG_DIR": directory, "JUPYTER_RUNTIME_DIR": directory}
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        resources = {"metadata": {"path": directory}}
        client = NotebookClient(
            notebook, timeout=SECONDS, record_timing=False, coalesce_streams=True, resources=resources
        )
        client.execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if LOGS in cell.metadata.get("tags", ()):
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main():
    parser = argparse.ArgumentParser(description="Execute notebooks.")
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS)
    parser.add_argument("--into", type=Path, help="directory for the results; by default the notebooks are overwritten")
    options = parser.parse_args()
    for path in options.notebooks:
        nbformat.write(executed(path), (options.into or path.parent) / path.name)


if __name__ == "__main__":
    main()
