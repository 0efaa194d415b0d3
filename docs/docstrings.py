"""Docstrings for mkdocstrings: roles of Sphinx, as editors know them, become links or code."""

import re
from functools import partial
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(class|meth|func|attr|data|mod):`(~?)([\w.]+)`")


class Roles(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(partial(_link, obj), obj.docstring.value)


def _link(obj: Object, match: re.Match[str]) -> str:
    kind, is_short, name = match.groups()
    last = name.rpartition(".")[2]
    text = f"`{last if is_short else name}`"
    # Names without a module are of the same class, which is on the same page; not every module has a page.
    if kind == "mod" or not name.startswith("ce_nats."):
        return text
    # A function that has the name of its module is documented there.
    path = f"{name}.{last}"
    return f"[{text}][{path if _is_known(obj, path) else name}]"


def _is_known(obj: Object, path: str) -> bool:
    try:
        obj.modules_collection[path]
    except KeyError:
        return False
    return True
