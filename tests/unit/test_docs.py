"""The documentation says what is so: links lead somewhere, examples run, names and numbers are those of the code."""

import asyncio
import itertools
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents import agents
from local.stack import ROOT
from tests.template import template
from threadkeep import errors, ids, jsontext
from threadkeep.http import clone, gateway, generate, reply, saving, serve, threads, wire
from threadkeep.http import messages as messages_http
from threadkeep.http import working_memory as working_memory_http
from threadkeep.http.routes import ROUTES
from threadkeep.memory import filters, messages, options, titles
from threadkeep.memory.working_memory import options as working_memory
from threadkeep.models.port import ModelResponse, Usage
from threadkeep.storage import rules
from threadkeep.storage.dynamodb import DynamoDBStorage, items
from threadkeep.storage.port import NewMessage, NewThread, Receipt, Thread, TurnCommit
from threadkeep.turn import input
from threadkeep.turn.result import Step, TurnResult

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "clients").rglob("*.md"))
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
README, HTTP, OPERATIONS = TEXTS["README.md"], TEXTS["docs/http-api.md"], TEXTS["docs/operations.md"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def blocks(page: str, language: str) -> list[str]:
    return [code for found, code in _FENCE.findall(TEXTS[page]) if found == language]


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """The anchors that headings get: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    below = text.split(f"\n{heading}\n", 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert rows is not None, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[0].splitlines()[2:]]


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for link in _LINK.findall(prose(TEXTS[page])):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.resolve().exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


def python_blocks() -> Iterator[Any]:
    for page in TEXTS:
        for number, code in enumerate(blocks(page, "python"), 1):
            if not code.startswith("# layers/agents/") and "threadkeep_client" not in code:  # these need a server
                yield pytest.param(code, id=f"{page}:{number}")


@pytest.mark.parametrize("code", list(python_blocks()))
def test_examples_run(code: str) -> None:
    """A block runs as it stands; what it defines as a test is run too."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example", "exec"), names)
    for name, function in names.items():
        if name.startswith("test_"):
            function()


def test_the_first_agent_can_be_deployed(tmp_path: Path) -> None:
    """Blocks that name a file of the agents' package make a package that the registry loads."""
    package = tmp_path / "agents"
    shutil.copytree(ROOT / "layers/agents/agents", package)
    named = [code for code in blocks("README.md", "python") if code.startswith("# layers/agents/agents/")]
    assert len(named) == 2
    for code in named:
        (package / Path(code.splitlines()[0]).name).write_text(code)
    script = "from threadkeep.agents import Registry; print([a.id for a in Registry.load('agents').listed()])"
    path = os.pathsep.join([str(tmp_path), str(ROOT / "layers/threadkeep")])
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    shipped = [agent.id for agent in agents]
    assert done.stdout.strip() == str([*shipped, "librarian"])


def curl_commands() -> Iterator[Any]:
    for page in TEXTS:
        for code in blocks(page, "sh"):
            words = shlex.split(code.replace("\\\n", " "), comments=True)
            starts = [n for n, word in enumerate(words) if word == "curl"]
            for start, end in itertools.pairwise([*starts, len(words)]):
                yield pytest.param(words[start:end], id=f"{page}: {words[start + 1]}")


@pytest.mark.parametrize("words", list(curl_commands()))
def test_curl_commands_call_routes_that_exist(words: list[str]) -> None:
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
    url = next(word for word in words if word.startswith("$BASE_URL"))
    assert is_route(method, url.removeprefix("$BASE_URL").partition("?")[0])
    if "-d" in words:
        json.loads(words[words.index("-d") + 1])
    assert "Authorization: Bearer $API_KEY" in words


def is_route(method: str, path: str) -> bool:
    return any(
        route.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/{}]+", route.path), path) for route in ROUTES
    )


def test_the_route_table_is_documented_whole() -> None:
    documented = {cell for row in table(HTTP, "## Routes") for cell in re.findall(r"`([A-Z]+ /[^`?]+)", row[0])}
    assert documented == {f"{route.method} {route.path}" for route in ROUTES}


def test_every_route_in_the_text_exists() -> None:
    for page, text in TEXTS.items():
        for method, path in re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`?\s]*)[^`]*`", prose(text)):
            assert is_route(method, re.sub(r"{\w+}", "x", path)), f"{page}: {method} {path}"


def error_classes(kind: type[errors.ThreadkeepError] = errors.ThreadkeepError) -> dict[str, int]:
    found = {kind.__name__: kind.status}
    for child in kind.__subclasses__():
        found |= error_classes(child)
    return found


def test_the_errors_are_documented_with_their_status() -> None:
    documented = {row[1].strip("`"): int(row[0]) for row in table(HTTP, "## Errors")}
    base = errors.ThreadkeepError.__name__
    assert documented == {name: status for name, status in error_classes().items() if name != base}


def test_parameters_are_documented_with_their_defaults() -> None:
    rows = {row[0].strip("`"): row[1].strip("`") for row in table(OPERATIONS, "## Parameters")}
    declared = template()["Parameters"]
    assert list(rows) == list(declared)
    for name, default in rows.items():
        assert default == (str(declared[name]["Default"]) or "empty") or name == "AllowedModelArns", name


def test_parameters_outputs_and_resources_in_the_text_exist() -> None:
    known = set(template()["Parameters"]) | set(template()["Outputs"])
    named = {word for row in table(README, "## Deploy") for word in re.findall(r"`([A-Z]\w+)`", row[0])}
    for text in TEXTS.values():
        named |= set(re.findall(r"OutputKey=='(\w+)'", text))
        for line in re.findall(r'^parameter_overrides = "(.*)"$', text, re.MULTILINE):
            named |= {override.partition("=")[0] for override in line.split()}
    assert named and named <= known
    alarms = {name for name, found in template()["Resources"].items() if found["Type"].endswith("::Alarm")}
    assert {row[0].strip("`") for row in table(OPERATIONS, "## Alarms")} == alarms


def test_the_alarms_cost_what_the_text_says() -> None:
    """10 cents for each metric that an alarm looks at."""
    alarms = [r["Properties"] for r in template()["Resources"].values() if r["Type"].endswith("::Alarm")]
    metrics = sum(sum("MetricStat" in m for m in alarm.get("Metrics", ())) or 1 for alarm in alarms)
    row = f"| {len(alarms)} alarms on {metrics} metrics, only with `Stage=prod` | ${metrics / 10:.2f} |"
    assert row in README


def test_durable_runs_in_the_text_have_the_id_that_they_were_given() -> None:
    code = "\n".join(blocks("docs/http-api.md", "sh"))
    assert set(re.findall(r"/runs/([\w-]+)", code)) == set(re.findall(r'"runId": "(report-\d+)"', code)) != set()


def test_make_targets_in_the_text_exist() -> None:
    declared = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, text in TEXTS.items():
        code = [*re.findall(r"`([^`\n]+)`", prose(text)), *blocks(page, "sh")]
        assert {target for part in code for target in re.findall(r"\bmake (\w+)", part)} <= declared, page


@pytest.mark.parametrize(
    "limit",
    [
        ids.MAX_BYTES,
        serve.MAX_REQUEST_BYTES,
        serve.MAX_DEPTH,
        gateway.MAX_REPLY_BYTES,
        rules.MAX_TURN_MESSAGES,
        rules.MAX_TURN_BYTES,
        rules.MAX_BODY_BYTES,
        input.MAX_MESSAGES,
        options.MAX_LAST_MESSAGES,
        generate.MAX_STEPS,
        wire.MAX_TITLE,
        wire.MAX_METADATA,
        titles.MAX_TITLE,
        threads.MAX_FILTERED,
        messages_http.MAX_INCLUDES,
        messages_http.MAX_NEIGHBOURS,
        saving.MAX_SAVED,
        saving.MAX_TYPE,
        filters.MAX_KEY,
        clone.COPY_SECONDS,
        working_memory_http.WRITE_SECONDS,
        working_memory.DEFAULT_BYTES,
        working_memory.LARGEST_BYTES,
    ],
)
def test_limits_are_documented(limit: int) -> None:
    assert any(re.search(rf"(?<![\d,]){limit:,}(?!,?\d)", row[1]) for row in table(HTTP, "## Limits"))


def test_the_pause_before_a_task_comes_back_is_the_queues() -> None:
    queue = template()["Resources"]["AfterTurnQueue"]["Properties"]
    assert f"after {queue['VisibilityTimeout'] // 60} minutes" in TEXTS["docs/failure-semantics.md"]
    assert queue["RedrivePolicy"]["maxReceiveCount"] == 5


class Recorder:
    """Stands in for DynamoDB's client and keeps the actions of the transactions."""

    def __init__(self) -> None:
        self.actions: list[tuple[str, dict[str, Any]]] = []

    def transact_write_items(self, *, TransactItems: list[dict[str, Any]]) -> dict[str, Any]:
        self.actions += [next(iter(action.items())) for action in TransactItems]
        return {}


def size(item: dict[str, dict[str, str]]) -> int:
    """Bytes of an item as DynamoDB counts them: names and texts (numbers count less than their text)."""
    return sum(len(name.encode()) + len(next(iter(value.values())).encode()) for name, value in item.items())


def write_units(item: dict[str, Any]) -> int:
    return 2 * math.ceil(size(item) / 1024)  # a transaction costs twice


def test_the_units_in_the_cost_table_are_those_of_the_code() -> None:
    recorder = Recorder()
    store = DynamoDBStorage("table", recorder)  # type: ignore[arg-type]
    thread = Thread(ids.new_id(), ids.new_id(), "Leap years", None, 1, 1, seq=20, last_at=1, message_count=20)
    metadata = {"modelId": template()["Parameters"]["DefaultModel"]["Default"], "provider": "bedrock"}
    question = NewMessage(ids.new_id(), "user", messages.content([messages.text_part("q" * 200, 1)]), 10**12)
    answer = NewMessage(
        ids.new_id(), "assistant", messages.content([messages.text_part("a" * 1000, 1)], metadata), 10**12
    )
    receipt = Receipt("k" * 64, ids.new_id(), "h" * 64, "done", 10**12, {"messageIds": [question.id, answer.id]})
    done = asyncio.run(store.commit_turn(TurnCommit(thread, (question, answer), receipt=receipt)))
    puts = [body["Item"] for kind, body in recorder.actions if kind == "Put"]
    assert [kind for kind, _ in recorder.actions] == ["Update"] + ["Put"] * 5  # 2 + 2n
    units = [write_units(item) for item in (items.thread_item(done.thread), *puts)]
    assert units == [2, 2, 2, 2, 6, 2]
    claim = 1  # the running receipt, written while the turn is loaded
    index = 2  # `g1sk` changes: the old row of the index goes, a new one comes
    assert f"| {sum(units) + claim + index} write units |" in README
    rows = sum(map(size, puts[2:4]))
    assert f"20 messages of {round(10 * rows / 1000)} KB" in README
    assert f"| {1 + math.ceil(10 * rows / 4096)} read units |" in README

    remembered = tuple(row for _ in range(10) for row in done.messages)
    step = Step(ModelResponse("a" * 1000, (), "stop", Usage(), metadata["modelId"]), (), 1, 1)
    result = TurnResult(ids.new_id(), "assistant", "bedrock", (step,), done.messages, done.thread, remembered)
    reply_size = len(jsontext.dumps(reply.generated(result)).encode())
    assert f"a reply of {round(reply_size / 1000)} KB" in README

    recorder.actions.clear()
    asyncio.run(store.create_thread(NewThread(ids.new_id(), ids.new_id())))
    assert f"{2 * len(recorder.actions) + 2} write units (creation)" in README  # and a row in each of two indexes


def test_the_sums_in_the_cost_table_are_right() -> None:
    rows = [(row[0], float(row[-1].strip("*$ |"))) for row in table(README, "## What it costs")]
    *parts, (last, total) = rows
    assert last == "**total**"
    assert round(sum(cost for _, cost in parts), 4) == total
