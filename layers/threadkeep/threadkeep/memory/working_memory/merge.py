"""Merging an update into a structured working memory (WM-16)."""

from threadkeep import jsontext
from threadkeep.jsontext import Json


def merged(existing: Json, update: Json) -> dict[str, Json]:
    """A new object: `existing` with the changes of `update`. Neither is changed.

    Objects merge key by key at any depth, null deletes a key, everything else replaces, lists as a whole;
    nulls inside lists stay. What is no object counts as absent. A list as the whole update counts as an
    object of its places (M18).
    """
    result = dict(jsontext.as_object(existing) or {})
    for key, value in _changes(update).items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value) if isinstance(value, dict) else value
    return result


def _changes(update: Json) -> dict[str, Json]:
    items = jsontext.as_array(update)
    return jsontext.as_object(update) or {str(place): item for place, item in enumerate(items or ())}
