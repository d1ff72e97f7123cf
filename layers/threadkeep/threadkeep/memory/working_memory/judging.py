"""Whether an update keeps to the schema: the parts that it touches, and the whole where the schema can judge it.

What was stored before may break the schema, which may have changed since, or miss what is required. An update
of another part must not fail for that::

    update   {"prefs": {"style": 5}}
    result   {"name": 7, "prefs": {"style": 5}}      prefs.style: refused, the update set it
                                                     name: not this update's fault
"""

from collections.abc import Iterable, Iterator, Sequence

from threadkeep import jsontext, schemas
from threadkeep.jsontext import Json
from threadkeep.memory.working_memory import schema as schema_of
from threadkeep.memory.working_memory.schema import Schema
from threadkeep.schemas import Broken

_UNEXPECTED = {"additionalProperties", "unevaluatedProperties", "propertyNames"}


def refusals(schema: Schema, stored: Json, update: Json, result: Json) -> dict[str, str]:
    """Why `result`, which is `stored` merged with `update`, must not be stored: dotted path to reason."""
    found = schemas.broken(schema, result)
    before = [(rule.path, rule.place) for rule in schemas.broken(schema, stored)] if found else []
    return reasons(rule for rule in found if _is_fault(rule, stored, update, (rule.path, rule.place) in before))


def reasons(found: Iterable[Broken]) -> dict[str, str]:
    """Broken rules by the dotted path of the value, or of the property that is missing or not allowed."""
    return schemas.by_path(told for rule in found for told in _told(rule))


def _told(rule: Broken) -> Iterator[tuple[str, str]]:
    for name in rule.names:
        path = schemas.dotted((*rule.path, name))
        yield path, {"required": "is required", "propertyNames": rule.reason}.get(rule.keyword, "is not in the schema")
    if not rule.names:
        yield schemas.dotted(rule.path), rule.reason


def _is_fault(rule: Broken, stored: Json, update: Json, was_before: bool) -> bool:
    if rule.keyword == schemas.UNTOLD:
        return True
    reached, part = _walk(update, rule.path)
    if not reached:
        return not was_before
    fields = jsontext.as_object(part)
    if fields is None:
        return True
    if rule.keyword == "required":
        return not all(name in fields and fields[name] is None for name in rule.names)
    if rule.keyword in _UNEXPECTED:
        old = jsontext.as_object(_walk(stored, rule.path)[1]) or {}
        return not all(name in old and name not in fields for name in rule.names)
    return not was_before


def _walk(value: Json, path: Sequence[str | int]) -> tuple[bool, Json]:
    """Whether the path stays within objects of the value or ends inside what is no object, and what it ends at."""
    for step in path:
        fields = jsontext.as_object(value)
        if fields is None:
            return True, value
        if step not in fields:
            return False, None
        value = fields[str(step)]
    return True, value


def cleaned(schema: Schema, update: dict[str, Json], *, drop_nulls: bool) -> dict[str, Json]:
    """The update without what the schema's model ignores (W7).

    `drop_nulls`: also without the nulls inside lists that their item does not require (W13). Other nulls
    stay, to delete.
    """
    return _Cleaning(schema, drop_nulls).object(update, schema, in_list=False)


class _Cleaning:
    def __init__(self, root: Schema, drop_nulls: bool):
        self.root = root
        self.drop_nulls = drop_nulls

    def object(self, fields: dict[str, Json], schema: Json, *, in_list: bool) -> dict[str, Json]:
        node = schema_of.resolved(schema, self.root)
        required = self._required(node) if in_list else set[str]()
        result: dict[str, Json] = {}
        for key, value in fields.items():
            if value is None and (not in_list or key in required or not self.drop_nulls):
                result[key] = None
            elif value is not None and not schema_of.ignores(node, key):
                result[key] = self._value(value, schema_of.of_property(node, key), in_list)
        return result

    def _value(self, value: Json, schema: Json, in_list: bool) -> Json:
        fields, items = jsontext.as_object(value), jsontext.as_array(value)
        if fields is not None:
            return self.object(fields, schema, in_list=in_list)
        if items is not None:
            inner = schema_of.resolved(schema, self.root).get("items")
            return [self._value(item, inner, True) for item in items]
        return value

    def _required(self, node: Schema) -> set[str]:
        """What the object requires, in at least one of its alternatives."""
        options = (*(node.get("anyOf") or ()), *(node.get("oneOf") or ()))
        nodes = (node, *(schema_of.resolved(option, self.root) for option in options))
        return {name for one in nodes for name in one.get("required") or ()}
