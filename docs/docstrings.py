"""Docstrings for mkdocstrings: roles of Sphinx, as editors know them, become links or code."""

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
    # Names without a module are of the same class, which is on the same page; not every module has a page.
    return text if kind == "mod" or not name.startswith("ce_nats.") else f"[{text}][{name}]"
