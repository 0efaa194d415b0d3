"""
Run a target with Atheris, until libFuzzer ends the process. Findings are lines of standard output.

Arguments: the name of the target, the module with its ``TARGETS``, and the arguments of libFuzzer.
"""

import json
import sys
from base64 import b64encode
from importlib import import_module

import atheris

MARK = "FINDING "


def main(name: str, module: str, *options: str) -> None:
    with atheris.instrument_imports(include=["ce_nats"]):
        engine = import_module("tests.proof.fuzz.engine")
        target = import_module(module).TARGETS[name]
    places = set[str]()

    def run(data: bytes) -> None:
        for found in engine.findings_in(target, [data]):
            place = found.error.rpartition("(")[2]
            if place not in places and len(places) < engine.MAX_FINDINGS:
                places.add(place)
                fields = {"inputs": [b64encode(one).decode() for one in found.inputs], "error": found.error}
                print(MARK + json.dumps(fields), flush=True)

    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
