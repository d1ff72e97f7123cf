"""What checking a value against a JSON Schema costs, counted before it is done.

Schemas come from callers, and a schema of a few lines can ask for years of work::

    L0: anyOf [L1, L1]    L1: anyOf [L2, L2]    ...    L40: integer        2^40 ways to look at one value
    T: anyOf [{a: T}, {a: T}]                                              2^n ways to look at n levels

A step is one schema that is held against one value. A schema that takes too many for a single value is refused;
the steps for a value of several levels are counted with the value, as they depend on both.
"""

from collections.abc import Iterator
from urllib.parse import unquote

from threadkeep import jsontext
from threadkeep.jsontext import Json

MOST_AT_ONCE = 2_000  # steps for one value, its members aside
DEEPEST = 64  # schemas inside each other that look at the same value
MOST = 100_000  # steps for a whole value, and
MOST_EACH = 10  # more for each of its members: a long value may take longer

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_OF_MEMBERS = (
    "additionalProperties",
    "unevaluatedProperties",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
)
_UNFOLLOWED = ("$dynamicRef", "$recursiveRef")


class Endless(ValueError):
    """The schema would take too long, or it cannot be told how long."""


def check(root: Json) -> None:
    """Raises `Endless` for a schema that takes too many steps for one value, or one whose steps cannot be told."""
    _check_references(root)
    _Counting(root).check()


def steps(root: Json, value: Json) -> int | None:
    """How many steps the value takes at most; None if too many."""
    count, most = 0, MOST + MOST_EACH * _members(value)
    todo: list[tuple[Json, Json]] = [(root, value)]
    beside: dict[int, tuple[Json, ...]] = {}  # by the schema, which the root keeps alive: each is met again and again
    while todo:
        schema, found = todo.pop()
        count += 1
        if count > most:
            return None
        if id(schema) not in beside:
            beside[id(schema)] = tuple(_beside(schema, root))
        todo += [(inner, found) for inner in beside[id(schema)]]
        if isinstance(found, dict | list):
            todo += _below(schema, found)
    return count


def _members(value: Json) -> int:
    count, todo = 0, [value]
    while todo:
        inner = todo.pop()
        count += 1
        todo += jsontext.as_array(inner) or list((jsontext.as_object(inner) or {}).values())
    return count


class _Counting:
    """Steps and levels of each schema inside a root, its members' aside."""

    def __init__(self, root: Json):
        self.root = root
        self.known: dict[int, tuple[int, int]] = {}
        self.open = set[int]()

    def check(self) -> None:
        todo = [self.root]
        while todo:
            schema = todo.pop()
            self.of(schema, 0)
            todo += jsontext.as_array(schema) or list((jsontext.as_object(schema) or {}).values())

    def of(self, schema: Json, level: int) -> tuple[int, int]:
        if id(schema) in self.known:
            return self.known[id(schema)]
        if id(schema) in self.open:
            raise Endless("it refers to itself for the same value")
        self.open.add(id(schema))
        count = levels = 1
        for inner in _beside(schema, self.root):
            more, deeper = self.of(inner, level + 1) if level < DEEPEST else (1, DEEPEST)
            count, levels = count + more, max(levels, deeper + 1)
        if count > MOST_AT_ONCE:
            raise Endless(f"its alternatives look at one value in more than {MOST_AT_ONCE} ways")
        if levels > DEEPEST:
            raise Endless(f"more than {DEEPEST} schemas inside each other look at one value")
        self.open.remove(id(schema))
        self.known[id(schema)] = (count, levels)
        return count, levels


def _check_references(root: Json) -> None:
    """References are followed as JSON pointers from the root; other ways to name a schema would not be seen."""
    todo, old = [root], "draft-04" in str((jsontext.as_object(root) or {}).get("$schema"))
    while todo:
        schema = todo.pop()
        fields = jsontext.as_object(schema) or {}
        ref = fields.get("$ref", "#")
        if isinstance(ref, str) and not (ref == "#" or ref.startswith("#/")):
            raise Endless(f"the reference {ref} must be # or begin with #/")
        if named := [key for key in _UNFOLLOWED if isinstance(fields.get(key), str)]:
            raise Endless(f"{named[0]} is not supported; use $ref")
        if schema is not root and isinstance(fields.get("id" if old else "$id"), str):
            raise Endless("only its root may have an $id")
        todo += jsontext.as_array(schema) or list(fields.values())


def referred(ref: Json, root: Json) -> Json:
    """What a `$ref` points at inside `root`; None where it leads nowhere."""
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        return None
    found: Json = root
    for step in unquote(ref[2:]).split("/") if len(ref) > 1 else ():
        found = _member(found, step.replace("~1", "/").replace("~0", "~"))
    return found


def _member(node: Json, step: str) -> Json:
    items = jsontext.as_array(node)
    if items is not None:
        return items[int(step)] if step.isdecimal() and len(step) < 9 and int(step) < len(items) else None
    return (jsontext.as_object(node) or {}).get(step)


def _beside(schema: Json, root: Json) -> Iterator[Json]:
    """The schemas inside a schema that look at the same value."""
    node = jsontext.as_object(schema) or {}
    if "$ref" in node and (target := referred(node["$ref"], root)) is not None:
        yield target
    for keyword in _LISTS:
        yield from jsontext.as_array(node.get(keyword)) or ()
    for keyword in _SINGLE:
        if keyword in node:
            yield node[keyword]
    for keyword in _MAPS:
        yield from (jsontext.as_object(node.get(keyword)) or {}).values()


def _below(schema: Json, value: Json) -> Iterator[tuple[Json, Json]]:
    """The schemas inside a schema that look at members of the value, each with its member."""
    node = jsontext.as_object(schema) or {}
    fields, items = jsontext.as_object(value), jsontext.as_array(value)
    if fields is not None:
        named = jsontext.as_object(node.get("properties")) or {}
        yield from ((inner, fields[key]) for key, inner in named.items() if key in fields)
        for inner in (jsontext.as_object(node.get("patternProperties")) or {}).values():
            yield from ((inner, member) for member in fields.values())
        if "propertyNames" in node:
            yield from ((node["propertyNames"], key) for key in fields)
    members = list((fields or {}).values()) if items is None else items
    for keyword in _OF_MEMBERS:
        inner = node.get(keyword)
        if isinstance(inner, dict):
            yield from ((inner, member) for member in members)
    for keyword in ("items", "prefixItems"):
        yield from zip(jsontext.as_array(node.get(keyword)) or (), members, strict=False)
