"""The arguments of a tool call as providers send them."""

from threadkeep.jsontext import Json, as_object, dumps, loads


def parsed(raw: Json) -> tuple[dict[str, Json], str | None]:
    """The arguments object, or an empty one and the text that is none. No text at all means no arguments."""
    if not isinstance(raw, str):
        args = {} if raw is None else as_object(raw)
        return ({}, dumps(raw)) if args is None else (args, None)
    if not raw.strip():
        return {}, None
    try:
        args = as_object(loads(raw))
    except ValueError:
        args = None
    return ({}, raw) if args is None else (args, None)
