"""The client's models of replies, generated from `docs/openapi.json` into one file.

`python clients/python/generate_models.py` writes it, with `--check` it fails (exit 1) where the file has drifted.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTION = ROOT / "docs/openapi.json"
FILE = ROOT / "clients/python/threadkeep_client/models.py"
HEADER = '"""The replies of the API, generated from docs/openapi.json by generate_models.py. Do not edit."""\n'
OPTIONS = (
    "--input-file-type=openapi",
    "--output-model-type=pydantic_v2.BaseModel",
    "--target-python-version=3.11",
    "--base-class=threadkeep_client.reply.Reply",
    "--snake-case-field",
    "--no-alias",
    "--strict-nullable",
    "--enum-field-as-literal=all",
    "--use-standard-collections",
    "--use-union-operator",
    "--use-schema-description",
    "--disable-timestamp",
    "--formatters=builtin",
)

Json = Any


def replies(description: dict[str, Json]) -> dict[str, Json]:
    """The part of an OpenAPI description that replies of success are made of.

    Titles are left out: the generator would make names of them that mean nothing.
    """
    schemas: dict[str, Json] = description["components"]["schemas"]
    operations = [operation for path in description["paths"].values() for operation in path.values()]
    wanted = _named([operation["responses"].get(status) for operation in operations for status in ("200", "202")])
    found: set[str] = set()
    while missing := wanted - found:
        found |= missing
        wanted |= _named([schemas[name] for name in missing])
    kept = {name: _untitled(schema) for name, schema in schemas.items() if name in found}
    return {key: description[key] for key in ("openapi", "info")} | {"paths": {}, "components": {"schemas": kept}}


def text() -> str:
    """The source of the models."""
    description = json.dumps(replies(json.loads(DESCRIPTION.read_text())))
    made = _run("datamodel_code_generator", *OPTIONS, given=description)
    source = HEADER + re.sub(r"\A(?:#.*\n)+", "", made)
    place = ("--stdin-filename", str(FILE), "-")
    checked = _run("ruff", "check", "--quiet", "--select=I,UP", "--fix", *place, given=source)
    return _run("ruff", "format", *place, given=checked)


def _run(module: str, *arguments: str, given: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _named(schema: Json) -> set[str]:
    return set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))


def _untitled(schema: Json) -> Json:
    if isinstance(schema, dict):
        fields = cast(dict[str, Json], schema).items()
        return {key: _untitled(value) for key, value in fields if key != "title" or not isinstance(value, str)}
    return [_untitled(value) for value in cast(list[Json], schema)] if isinstance(schema, list) else schema


def main(arguments: list[str]) -> int:
    if "--check" not in arguments:
        FILE.write_text(text())
    elif not FILE.exists() or FILE.read_text() != text():
        print(f"{FILE.relative_to(ROOT)} has drifted from docs/openapi.json: run `make openapi`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
