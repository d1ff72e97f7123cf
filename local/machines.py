"""Checks the state machines, which `sam validate` and cfn-lint do not look into while they are files of their own.

cfn-lint judges each definition as part of a template (rule E3601). That every state is reached and leads to one that
exists is checked here.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local.stack import ROOT

CFN_LINT = ROOT / ".local/venvs/sam/bin/cfn-lint"
MACHINES = ROOT / "statemachines"

Definition = dict[str, Any]


def problems(definitions: dict[str, Definition]) -> list[str]:
    """What is wrong with the definitions, each problem with the name of its machine; empty if all is well."""
    found = [f"{name}: {problem}" for name, definition in definitions.items() for problem in _lost(definition)]
    return found + _linted(definitions)


def _lost(machine: Definition) -> Iterator[str]:
    """States that do not exist or are never reached, in this machine and those within it."""
    states: dict[str, Definition] = machine.get("States", {})
    wanted = {machine.get("StartAt", "")} | {target for state in states.values() for target in _targets(state)}
    yield from (f"there is no state {name!r}" for name in sorted(wanted - states.keys()))
    yield from (f"nothing leads to the state {name!r}" for name in sorted(states.keys() - wanted))
    for state in states.values():
        for inner in (*state.get("Branches", ()), *filter(None, (state.get("ItemProcessor"), state.get("Iterator")))):
            yield from _lost(inner)


def _targets(state: Definition) -> Iterator[str]:
    for choice in (state, *state.get("Choices", ()), *state.get("Catch", ())):
        yield from (choice[name] for name in ("Next", "Default") if name in choice)


def _linted(definitions: dict[str, Definition]) -> list[str]:
    """What cfn-lint says."""
    template = {"Resources": {name: _resource(definition) for name, definition in definitions.items()}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.json"
        path.write_text(json.dumps(template, indent=1))
        command = [str(CFN_LINT), "--format", "parseable", "--regions", "us-east-1", "--", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    lines = (done.stdout + done.stderr).splitlines()
    return [line.removeprefix(f"{path}:") for line in lines if line] or ["cfn-lint failed"] * bool(done.returncode)


def _resource(definition: Definition) -> dict[str, Any]:
    names = sorted(set(_substitutions(definition)))
    properties: dict[str, Any] = {"RoleArn": "arn:aws:iam::123456789012:role/any", "Definition": definition}
    if names:
        properties["DefinitionSubstitutions"] = dict.fromkeys(names, "any")
    return {"Type": "AWS::StepFunctions::StateMachine", "Properties": properties}


def _substitutions(value: Any) -> Iterator[str]:
    """The names of the `${...}` in a definition."""
    if isinstance(value, str) and value.startswith("${"):
        yield value[2:-1]
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():  # pyright: ignore[reportUnknownVariableType]
        yield from _substitutions(part)


def main() -> None:
    definitions = {
        path.name.split(".")[0].title(): json.loads(path.read_text()) for path in MACHINES.glob("*.asl.json")
    }
    if found := problems(definitions):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
