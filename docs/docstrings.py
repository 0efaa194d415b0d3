"""Docstrings for mkdocstrings: convert roles of Sphinx to links or code."""

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(class|meth|func|attr|data|mod):`(~?)([\w.]+)`")


class Roles(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(_link, obj.docstring.value)


def _link(match: re.Match[str]) -> str:
    kind, is_short, name = match.groups()
    last = name.rpartition(".")[2]
    text = f"`{last if is_short else name}`"
    # Names without a module are members of the same class. Not every module has a page.
    is_linked = kind != "mod" and name.startswith("ce_nats.")
    return f"[{text}][{name}]" if is_linked else text
