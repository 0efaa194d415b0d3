"""
One function for each sequence of attribute or header names, compiled from generated source text.

Header names and attributes are unpacked into local variables and handled one after the other, without a loop. Names
have to occur several times before a function is compiled for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final, TypeAlias

from .. import _json_members
from .._bounded_cache import MAX_TUPLES, BoundedNamesCache, Names, is_cacheable
from ..attributes import CORE, are_valid_names
from ..mode import PREFIX, SIZE_HEADER, SortedNames, sort_names
from . import _values
from ._values import RULES, NotHandled, decline

# Compiling a function takes as long as about 30 events, so none is compiled for names that occur only a few times.
USES_BEFORE_COMPILE: Final = 8
# Events without a function, since the last one was compiled, that show that a flood of new names is over.
CALM: Final = 10_000
# Sequences of names whose uses are counted.
MAX_COUNTED: Final = 1024

Converter: TypeAlias = Callable[..., Any]


class CompiledConverters(BoundedNamesCache[Converter]):
    """
    Cache of the functions compiled for sequences of names.

    The look-up raises NotHandled until a sequence of names has occurred often enough.
    """

    def __init__(self, make: Callable[[Names], Converter], uses_before_compile: int = USES_BEFORE_COMPILE) -> None:
        super().__init__(make)
        self._uses: dict[Names, int] = {}
        self._misses = 0
        self._initial_uses = uses_before_compile
        self.uses_before_compile = uses_before_compile

    def __missing__(self, names: Names) -> Converter:
        if not is_cacheable(names):
            raise NotHandled
        uses = self._uses.pop(names, 0) + 1
        if uses >= self.uses_before_compile:
            if len(self) >= MAX_TUPLES:
                # A peer that keeps sending new names makes us compile fewer and fewer functions.
                self.uses_before_compile *= 2
            self._misses = 0
            return super().__missing__(names)
        self._misses += 1
        if self._misses >= CALM:
            self._misses = 0
            self.uses_before_compile = max(
                self.uses_before_compile // 2, min(self.uses_before_compile, self._initial_uses)
            )
        if len(self._uses) >= MAX_COUNTED:
            self._uses.clear()
        self._uses[names] = uses
        raise NotHandled


# --- Source text ----------------------------------------------------------------------------------------------------


def header_encoder_source(names: Sequence[str]) -> str:
    """Return the source text of a function that encodes attributes as name and value pairs of ``ce-`` headers."""
    lines, results = header_values(names)
    return _source(
        *lines, f"return [{', '.join(f'({PREFIX + name!r}, {result})' for name, result in results.items())}]"
    )


def header_values(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the first lines of a function that encodes attributes, and expressions of header values by attribute."""
    variables = {name: f"v{place}" for place, name in enumerate(names)}
    results = {name: f"{name}_texts[{variable}]" if name in RULES else variable for name, variable in variables.items()}
    lines = [
        "def convert(attributes):",
        f"{', '.join(variables.values())} = attributes.values()",
        *_strings_of(variables),
        *_require_version(variables["specversion"]),
        *_require_texts("escape_all", _uncached(variables)),
        *_time_to_text(variables),
    ]
    return lines, results


def member_encoder_source(names: Sequence[str]) -> str:
    """Return the source text of a function that encodes attributes as a JSON event without data."""
    variables = {name: f"v{place}" for place, name in enumerate(names)}
    strings = [variable for name, variable in variables.items() if name != "time"]
    time = f', "time": {variables["time"]}' if "time" in variables else ""
    return _source(
        "def convert(attributes):",
        f"{', '.join(variables.values())} = attributes.values()",
        *_strings_of(variables),
        *_require_version(variables["specversion"]),
        *_require(" and ".join(strings)),
        *(f"{cache}[{variables[name]}]" for name, cache in _CHECKS.items() if name in variables),
        *_time_to_text(variables),
        f"text = to_json({{**attributes{time}}})",
        *_require(f"is_printable(text, ({', '.join(strings)}))"),
        "return text",
    )


def header_decoder_source(names: Sequence[str]) -> str:
    """Return the source text of a function that decodes header values to attributes, or to None in structured mode."""
    found = sort_names(tuple(names))
    headers = [f"v{place}" for place in range(len(names))]
    variables = {name: headers[place] for name, place in zip(found.attributes, found.ce_places)}
    content_types = [headers[place] for place in found.content_type_places]
    first = ("def convert(values):", f"{', '.join(headers)}, = values", *_require_strings(headers))
    if not variables:
        return _source(*first, *(f"structured_types[{header}]" for header in content_types), "return None")
    results = {
        name: f"{name}_values[{variable}]" if name in RULES else variable for name, variable in variables.items()
    }
    if "time" in variables:
        results["time"] = f"timestamp({variables['time']})"
    return _source(
        *first,
        *_require_version(variables["specversion"]),
        *(f"other_types[{header}]" for header in content_types),
        *_require_texts("unescape_all", _uncached(variables)),
        f"return {{{', '.join(f'{_key(name, variables)}: {result}' for name, result in results.items())}}}",
    )


def _key(name: str, variables: Mapping[str, str]) -> str:
    """Return the expression for a name. Python 3.12 and later never free constants that are identifiers."""
    return repr(name) if name in CORE else f"name_of_{variables[name]}"


_CHECKS: Final = {"datacontenttype": "media_types", "dataschema": "schemas"}


def _source(*lines: str) -> str:
    return "\n    ".join(lines)


def _uncached(variables: Mapping[str, str]) -> list[str]:
    """Return the variables whose values differ in each event."""
    return [variable for name, variable in variables.items() if name not in {*RULES, "specversion", "time"}]


def _require(condition: str) -> Iterator[str]:
    yield f"if not ({condition}):"
    yield "    raise NotHandled"


def _require_strings(variables: Iterable[str]) -> Iterator[str]:
    return _require(f"{' is '.join(f'{variable}.__class__' for variable in variables)} is str")


def _strings_of(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield lines that require strings, except for the time, and convert integer and boolean extensions to strings."""
    core = [variable for name, variable in variables.items() if name in CORE and name != "time"]
    extensions = [variable for name, variable in variables.items() if name not in CORE]
    first, *rest = _require_strings([*core, *extensions])
    yield first
    if extensions:
        yield from (f"    {line}" for line in _require_strings(core))
        yield f"    {', '.join(extensions)}, = scalar_texts(({', '.join(extensions)},))"
    else:
        yield from rest


def _require_version(variable: str) -> Iterator[str]:
    return _require(f'{variable} == "1.0"')


def _require_texts(function: str, variables: Sequence[str]) -> Iterator[str]:
    """Yield lines that decline empty texts, and call ``function`` if a check of all texts together does not pass."""
    yield from _require(" and ".join(variables))
    yield f"if not is_literal({_joined(variables)}):"
    yield f"    {', '.join(variables)}, = {function}(({', '.join(variables)},))"


def _time_to_text(variables: Mapping[str, str]) -> Iterator[str]:
    if "time" in variables:
        # For a time in UTC msgspec writes the same text as isoformat() with a "Z", at a tenth of the cost.
        yield "{0} = to_builtins({0}) if {0}.__class__ is datetime and {0}.tzinfo is utc else time_text({0})".format(
            variables["time"]
        )


def _joined(variables: Iterable[str]) -> str:
    return f'f"{"".join(f"{{{variable}}}" for variable in variables)}"'


# --- Functions ------------------------------------------------------------------------------------------------------

# Names in the generated source text.
_SCOPE: Final[Mapping[str, object]] = {
    "NotHandled": NotHandled,
    "datetime": datetime,
    "utc": timezone.utc,
    "to_builtins": _values.to_builtins,
    "to_json": _values.to_json,
    "is_literal": _values.is_literal,
    "escape_all": _values.escape_all,
    "unescape_all": _values.unescape_all,
    "is_printable": _json_members.is_printable,
    "scalar_texts": _values.scalar_texts,
    "time_text": _values.time_text,
    "timestamp": _values.timestamp,
    "media_types": _values.media_types,
    "schemas": _values.schemas,
    "structured_types": _values.structured_types,
    "other_types": _values.other_types,
    **{f"{name}_texts": cache for name, cache in _values.header_texts.items()},
    **{f"{name}_values": cache for name, cache in _values.attribute_texts.items()},
}


def compiled(source: str, names: Mapping[str, object]) -> Converter:
    """Return the function of a source text, which uses ``names`` and those of the fast path."""
    scope: dict[str, Any] = {**_SCOPE, **names}
    exec(source, scope)  # noqa: S102  # the only text from outside are attribute names, which are letters and digits
    convert: Converter = scope["convert"]
    return convert


def _encoder(source: Callable[[Sequence[str]], str]) -> Callable[[Names], Converter]:
    return lambda names: compiled(source(names), {}) if are_valid_names(names) else decline


def is_handled(names: Names, found: SortedNames) -> bool:
    """Return whether the fast path decodes messages with these headers; with a size the payload may be elsewhere."""
    if len(found.content_type_places) > 1 or SIZE_HEADER in names:
        return False
    return not found.attributes or are_valid_names(found.attributes)


def _header_decoder(names: Names) -> Converter:
    found = sort_names(names)
    keys = {f"name_of_v{place}": name for place, name in zip(found.ce_places, found.attributes)}
    return compiled(header_decoder_source(names), keys) if is_handled(names, found) else decline


header_encoders: Final = CompiledConverters(_encoder(header_encoder_source))
member_encoders: Final = CompiledConverters(_encoder(member_encoder_source))
header_decoders: Final = CompiledConverters(_header_decoder)
