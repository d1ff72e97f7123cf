"""Working memory through the client and its command line: versions, and nobody's change is lost."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.stack import ROOT
from tests.unit.client.conftest import Run
from tests.unit.client.door import KEY, Door
from tests.unit.http.house import House
from threadkeep import Agent, Memory
from threadkeep_client import AsyncClient, Client, Conflict, InvalidRequest, NotFound, VersionMismatch

TEMPLATE = "# Notes\n- Name:"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": "array"}}}


def agent(name: str, **options: Any) -> Agent:
    return Agent(id=name, model="fake/m", memory=Memory(working_memory={"enabled": True, **options}))


@pytest.fixture(autouse=True)
def house(door: Door) -> House:
    agents = [agent("owner", template=TEMPLATE), agent("thread", template=TEMPLATE, scope="thread")]
    door.house = House(agents=[*agents, agent("schema", schema=SCHEMA)])
    door.house.add_thread("t1", "ada")
    return door.house


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes `$EDITOR` a program that runs Python code with the file's `text`, and writes what becomes of it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("VISUAL", raising=False)

    def use(code: str) -> None:
        script = tmp_path / "editor.py"
        lines = [
            "import sys, pathlib, re",
            f"sys.path.insert(0, {str(ROOT / 'clients/python')!r})",
            "file = pathlib.Path(sys.argv[1])",
            "text = file.read_text()",
            code,
            "file.write_text(text)",
        ]
        script.write_text("\n".join(lines))
        monkeypatch.setenv("EDITOR", f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}")

    return use


def kept_files(folder: Path) -> list[Path]:
    return list(folder.glob("threadkeep-*"))


def test_a_threads_memory_is_read_and_replaced_by_version(client: Client) -> None:
    empty = client.get_working_memory("t1", agent_id="thread", resource_id="ada")
    assert (empty.working_memory, empty.source, empty.thread_exists, empty.stored_version) == (None, "thread", True, 0)
    assert empty.working_memory_template and empty.working_memory_template.content == TEMPLATE
    written = client.update_working_memory("t1", "# A", agent_id="thread", resource_id="ada", version=0)
    assert written.success and written.stored_version == 1
    with pytest.raises(VersionMismatch) as caught:
        client.update_working_memory("t1", "# B", agent_id="thread", resource_id="ada", version=0)
    assert (caught.value.status, caught.value.version) == (412, 1)
    assert client.get_working_memory("t1", agent_id="thread").working_memory == "# A"
    assert client.update_working_memory("t1", "# C", agent_id="thread").stored_version == 2
    assert client.get_working_memory("nope", agent_id="thread").thread_exists is False
    with pytest.raises(NotFound):
        client.update_working_memory("nope", "# C", agent_id="thread")
    with pytest.raises(InvalidRequest):
        client.update_working_memory("t1", "", agent_id="thread")


def test_an_owners_memory_is_replaced_patched_and_cleared(client: Client) -> None:
    assert client.get_resource_memory("ada").version == 0
    first = client.replace_resource_memory("ada", {"name": "Ada", "tags": ["a"]}, agent_id="schema", version=0)
    assert (first.version, first.stored_version) == (1, 1)
    second = client.patch_resource_memory("ada", {"name": None, "tags": ["b"]}, version=1)
    assert json.loads(second.working_memory or "") == {"tags": ["b"]}
    with pytest.raises(VersionMismatch):
        client.patch_resource_memory("ada", {"name": "Eve"}, version=1)
    with pytest.raises(InvalidRequest):
        client.patch_resource_memory("ada", {"name": 7}, agent_id="schema")
    assert client.replace_resource_memory("ada", "").working_memory is None
    found = client.get_resource_memory("ada")
    assert [r.version for r in found.revisions] == [3, 2, 1]
    client.replace_resource_memory("ada", "plain text")
    with pytest.raises(Conflict, match="no JSON object"):
        client.patch_resource_memory("ada", {"a": 1})


async def test_versions_keep_every_change_of_concurrent_writers(door: Door) -> None:
    async with AsyncClient(door.url, KEY) as client:
        for n in range(5):
            while True:
                found = await client.get_resource_memory("ada")
                value = json.loads(found.working_memory or "{}") | {f"k{n}": n}
                if n % 2:  # somebody comes in between
                    await client.patch_resource_memory("ada", {f"other{n}": n})
                try:
                    await client.replace_resource_memory("ada", value, version=found.version)
                    break
                except VersionMismatch as error:
                    assert error.version == found.version + 1
                    value = json.loads((await client.get_resource_memory("ada")).working_memory or "{}")
                    await client.replace_resource_memory("ada", value | {f"k{n}": n}, version=error.version)
                    break
        kept = json.loads((await client.get_resource_memory("ada")).working_memory or "{}")
    assert kept == {"k0": 0, "k1": 1, "other1": 1, "k2": 2, "k3": 3, "other3": 3, "k4": 4}


def test_memory_is_shown_set_and_patched(run: Run, client: Client) -> None:
    assert run("memory", "show", "--resource", "ada") == (0, "", "Nothing is kept yet\n")
    assert run("memory", "set", "--resource", "ada", '{"a": 1}') == (0, "Stored as version 1\n", "")
    assert run("memory", "patch", "--resource", "ada", '{"b": [2]}', "--if-version", "1")[0] == 0
    code, out, err = run("memory", "show", "--resource", "ada")
    assert (code, json.loads(out)) == (0, {"a": 1, "b": [2]}) and err.startswith("version 2, changed 20")
    code, out, err = run("memory", "show", "--resource", "ada", "--history")
    assert [line.split()[0] for line in out.splitlines()] == ["VERSION", "2", "1"]
    shown = json.loads(run("memory", "show", "--resource", "ada", "--json")[1])
    assert shown["version"] == 2
    thread = ("--thread", "t1", "--agent", "thread")
    assert run("memory", "set", *thread, typed="# From a file\n") == (0, "Stored as version 1\n", "")
    assert run("memory", "show", *thread)[2] == "version 1, kept for the thread\n"
    assert client.get_working_memory("t1", agent_id="thread").working_memory == "# From a file\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("set", "x", "--resource", "ada", "--if-version", "7"), 4, "Somebody else changed it: version 0 is stored"),
        (("patch", "{", "--resource", "ada"), 2, "The patch is not JSON"),
        (("patch", "[]", "--resource", "ada"), 2, "The patch must be a JSON object"),
        (("show",), 2, "Whose memory? Give --resource, or --thread and --agent"),
        (("show", "--thread", "t1"), 2, "A thread's memory is kept by an agent: give --agent, too"),
        (("set", "", "--thread", "t1", "--agent", "thread"), 1, 'Argument "workingMemory" is required'),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    found, out, err = run("memory", *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1) and err.startswith(f"threadkeep: {said}")


def test_editing_begins_with_the_template_and_ends_with_a_version(
    run: Run, client: Client, edit: Callable[[str], None], tmp_path: Path
) -> None:  # fmt: skip
    edit("assert text == '# Notes\\n- Name:'; text += ' Ada\\n'")
    assert run("memory", "edit", "--thread", "t1", "--agent", "thread") == (0, "Stored as version 1\n", "")
    assert client.get_working_memory("t1", agent_id="thread").working_memory == "# Notes\n- Name: Ada"
    edit("text += '\\n'")
    assert run("memory", "edit", "--thread", "t1", "--agent", "thread") == (0, "", "Nothing was changed\n")
    assert kept_files(tmp_path) == []


def test_json_is_edited_with_indentation_and_stored_compact(
    run: Run, client: Client, edit: Callable[[str], None]
) -> None:  # fmt: skip
    client.replace_resource_memory("ada", {"name": "Ada", "tags": ["ü"]})
    edit("assert file.suffix == '.json' and '\\n  \"name\": \"Ada\"' in text; text = text.replace('Ada', 'Grace')")
    assert run("memory", "edit", "--resource", "ada")[0] == 0
    stored = client.get_resource_memory("ada").working_memory or ""
    assert json.loads(stored) == {"name": "Grace", "tags": ["ü"]} and "\n" not in stored
    edit("text = re.sub(r'\\s+', ' ', text)")
    assert run("memory", "edit", "--resource", "ada")[2] == "Nothing was changed\n"


def test_an_edit_that_somebody_else_overtook_is_refused_and_kept(
    run: Run, client: Client, door: Door, edit: Callable[[str], None], tmp_path: Path
) -> None:  # fmt: skip
    client.replace_resource_memory("ada", "mine")
    edit(
        "from threadkeep_client import Client\n"
        f"Client({door.url!r}, {KEY!r}).replace_resource_memory('ada', 'theirs')\ntext = 'my edit'"
    )
    code, out, err = run("memory", "edit", "--resource", "ada")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "you edited version 1, version 2 is stored now. Nothing was written" in err
    assert client.get_resource_memory("ada").working_memory == "theirs"
    [file] = kept_files(tmp_path)
    assert str(file) in err and file.read_text() == "my edit"


@pytest.mark.parametrize(
    ("editor", "said"),
    [
        ("/no/such/editor", "cannot be started"),
        ("vi 'unbalanced", "cannot be started"),
        (f"{sys.executable} -c 1/0", "ended with code 1"),
        ("rm", "left no text"),
    ],
)
def test_an_editor_that_fails_writes_nothing_and_leaves_nothing(
    run: Run, client: Client, monkeypatch: pytest.MonkeyPatch, edit: Any, tmp_path: Path, editor: str, said: str
) -> None:  # fmt: skip
    monkeypatch.setenv("EDITOR", editor)
    code, _, err = run("memory", "edit", "--resource", "ada")
    assert (code, said in err, "kept" in err, err.count("\n")) == (1, True, False, 1)
    assert client.get_resource_memory("ada").version == 0
    assert kept_files(tmp_path) == []


def test_what_was_written_before_the_editor_failed_is_kept(
    run: Run, edit: Callable[[str], None], tmp_path: Path
) -> None:
    edit("file.write_text('half'); sys.exit(3)")
    code, _, err = run("memory", "edit", "--resource", "ada")
    [file] = kept_files(tmp_path)
    assert (code, file.read_text()) == (
        1,
        "half",
    ) and f"code 3. Nothing is known to be written; your text is kept in {file}" in err


@pytest.mark.parametrize("left", ["", " \n\n"])
def test_an_emptied_text_forgets_nothing(
    run: Run, client: Client, edit: Callable[[str], None], tmp_path: Path, left: str
) -> None:  # fmt: skip
    edit(f"text = {left!r}")
    assert run("memory", "edit", "--resource", "ada")[2] == "Nothing was changed\n"
    client.replace_resource_memory("ada", "mine")
    code, _, err = run("memory", "edit", "--resource", "ada")
    assert code == 1 and "`threadkeep memory set`" in err
    assert client.get_resource_memory("ada").working_memory == "mine"
    assert kept_files(tmp_path) == []


def test_json_that_is_broken_by_an_edit_is_kept_and_not_stored(
    run: Run, client: Client, edit: Callable[[str], None], tmp_path: Path
) -> None:  # fmt: skip
    client.replace_resource_memory("ada", {"name": "Ada"})
    edit("text = text.replace('}', '')")
    code, _, err = run("memory", "edit", "--resource", "ada")
    assert code == 1 and "no JSON object any more" in err
    assert client.get_resource_memory("ada").version == 1
    assert [file.read_text() for file in kept_files(tmp_path)] == ['{\n  "name": "Ada"\n\n']


def test_a_changed_type_is_a_change(run: Run, client: Client, edit: Callable[[str], None]) -> None:
    client.replace_resource_memory("ada", {"vip": 1})
    edit("text = text.replace('1', 'true')")
    assert run("memory", "edit", "--resource", "ada")[0] == 0
    assert client.get_resource_memory("ada").working_memory == '{"vip": true}'


def test_line_ends_and_letters_are_left_as_they_are(
    run: Run, client: Client, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], None]
) -> None:  # fmt: skip
    client.replace_resource_memory("ada", "Grüße\r\nan Ada\r\n")
    monkeypatch.setenv("EDITOR", "true")
    assert run("memory", "edit", "--resource", "ada")[2] == "Nothing was changed\n"
    edit("file.write_bytes(file.read_bytes() + 'Ż'.encode()); sys.exit()")
    assert run("memory", "edit", "--resource", "ada")[0] == 0
    assert client.get_resource_memory("ada").working_memory == "Grüße\r\nan Ada\r\nŻ"


def test_an_interrupt_is_the_editors(run: Run, client: Client, edit: Callable[[str], None]) -> None:
    edit("import os, signal; os.kill(os.getppid(), signal.SIGINT); text = 'written after all'")
    assert run("memory", "edit", "--resource", "ada")[0] == 0
    assert client.get_resource_memory("ada").working_memory == "written after all"
