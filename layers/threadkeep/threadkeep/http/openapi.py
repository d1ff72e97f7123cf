"""`docs/openapi.json` from the route table.

`python -m threadkeep.http.openapi` writes it, with `--check` it fails (exit 1) where the file has drifted.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel

import threadkeep
from threadkeep.http.route import NoBody, Route, Table
from threadkeep.http.routes import ROUTES
from threadkeep.http.wire import Id, Query
from threadkeep.jsontext import Json

FILE = Path("docs/openapi.json")

_STATUS = {
    400: "The input breaks a rule",
    401: "No credential, or one that is wrong or expired",
    403: "It belongs to another resource",
    404: "There is no such thing",
    409: "The state of the store does not allow it; nothing was stored",
    412: "If-Match names another version than the stored one",
    413: "Request or reply is too large",
    422: "The Idempotency-Key was used with another request before",
    424: "The model refuses the request",
    500: "Our own fault",
    503: "The model is down, busy or too slow; repeating may help",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string"},
        "requestId": {"type": "string", "description": "Only with status 500"},
        "version": {"type": "integer", "description": "The version of a working memory that is stored"},
    },
}
_INVALID = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string"},
        "issues": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {
                    "field": {"type": "string", "description": "Dotted path, `root` or `body`"},
                    "message": {"type": "string"},
                },
            },
        },
    },
}


def document(table: Table) -> dict[str, Json]:
    """The OpenAPI 3.1 description of a route table."""
    schemas, components = _schemas(table)
    paths: dict[str, dict[str, Json]] = {}
    names: set[str] = set()
    for route in table:
        name = _name(route, names)
        names.add(name)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(name, route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Threadkeep", "version": threadkeep.__version__},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The service key, or a token of the configured OIDC issuer",
                }
            },
            "schemas": components | {"Error": _ERROR, "Invalid": _INVALID},
        },
    }


def text() -> str:
    return json.dumps(document(ROUTES), indent=2, ensure_ascii=False) + "\n"


def _name(route: Route[Any, Any, Any], taken: set[str]) -> str:
    """The operation's name; with a second path also what is different in that."""
    if route.name not in taken:
        return route.name
    return f"network_{route.name}" if "/network/" in route.path else f"{route.name}_{route.path.rpartition('/')[2]}"


def _schemas(table: Table) -> tuple[dict[str, Json], dict[str, Json]]:
    """The schema of every body and reply, by route and part, and the models that they refer to."""
    parts = [
        (f"{route.method} {route.path} {part}", "validation", TypeAdapter(model))
        for route in table
        for part, model in (("body", route.body), ("reply", route.reply), ("query", route.query))
    ]
    found, definitions = TypeAdapter.json_schemas(parts, ref_template="#/components/schemas/{model}")  # pyright: ignore[reportArgumentType]
    models: dict[str, Json] = definitions.get("$defs", {})
    schemas = {
        key: _resolved(schema, models) if key.endswith(" query") else schema for (key, _), schema in found.items()
    }
    queries = {route.query.__name__ for route in table}
    return schemas, {name: model for name, model in models.items() if name not in queries}


def _resolved(schema: Json, models: dict[str, Json]) -> Json:
    return models[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _operation(name: str, route: Route[Any, Any, Any], schemas: dict[str, Json]) -> dict[str, Json]:
    key = f"{route.method} {route.path}"
    operation: dict[str, Json] = {
        "operationId": to_camel(name),
        "summary": route.summary,
        "tags": [route.function],
        "parameters": _path_parameters(route.path) + _query_parameters(route.query, schemas[f"{key} query"]),
        "responses": {str(route.status): _ok(route, schemas[f"{key} reply"])} | _errors(route),
    }
    if route.body is not NoBody:
        operation["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schemas[f"{key} body"]} for kind in route.content_types},
        }
    if route.public:
        operation["security"] = []
    return operation


def _path_parameters(path: str) -> list[Json]:
    schema = TypeAdapter(Id).json_schema()
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in re.findall(r"{(\w+)}", path)]


def _query_parameters(query: type[Query], schema: Json) -> list[Json]:
    required: list[str] = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, **_encoded(field, name in query.json_fields)}
        for name, field in schema.get("properties", {}).items()
    ]


def _encoded(field: dict[str, Json], as_json: bool) -> dict[str, Json]:
    """How a parameter is written: as JSON text, or plainly. Both leave null out, since absence says it."""
    shown = {key: value for key, value in field.items() if key != "title" and (key, value) != ("default", None)}
    members = [member for member in shown.pop("anyOf", []) if member != {"type": "null"}]
    shown |= members[0] if len(members) == 1 else {"anyOf": members} if members else {}
    return {"content": _content(shown)} if as_json else {"schema": shown}


def _errors(route: Route[Any, Any, Any]) -> dict[str, Json]:
    usual = (500,) if route.public else (400, 401, 500)
    return {
        str(status): _response(_STATUS[status], {"$ref": f"#/components/schemas/{_error_name(status)}"})
        for status in sorted({*usual, *route.errors, *((413,) if route.body is not NoBody else ())})
    }


def _error_name(status: int) -> str:
    return "Invalid" if status == 400 else "Error"


def _ok(route: Route[Any, Any, Any], schema: Json) -> dict[str, Json]:
    if not route.streams:
        return _response("Accepted" if route.status == 202 else "OK", schema)
    return {"description": "Server-sent events", "content": {"text/event-stream": {"schema": schema}}}


def _response(description: str, schema: Json) -> dict[str, Json]:
    return {"description": description, "content": _content(schema)}


def _content(schema: Json) -> dict[str, Json]:
    return {"application/json": {"schema": schema}}


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text())
    elif not FILE.exists() or FILE.read_text() != text():
        print(f"{FILE} has drifted from the route table: run `make openapi`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
