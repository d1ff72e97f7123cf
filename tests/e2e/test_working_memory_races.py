"""Working memory under many writers on the deployed table (case H09): nothing is lost, and a serial order explains all.

The writers are processes of their own (`tests.writers`), some over HTTP (`tests.e2e.racers`); what they
recorded is checked by `tests.history`.
"""

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bench.working_memory import Naive
from tests.e2e.application import Application, eventually, new_id
from tests.e2e.racers import Answer, race
from tests.history import Kind, Operation, check, digest
from tests.writers import SCHEMA, Crew, Done, Place, Plan, crew, go, markdown, start, structured
from threadkeep.memory.working_memory.writing import ATTEMPTS
from threadkeep.storage.dynamodb import DynamoDBStorage, items
from threadkeep.storage.port import MemoryRevision, MemoryTarget, Thread, WorkingMemory

ROUNDS = int(os.environ.get("RACE_ROUNDS", "3"))  # of 200 writers, which take the store to its limit
FEW = ATTEMPTS // 4  # writes that anybody may need: nobody comes near to giving up

Steps = list[tuple[str, Kind, Any]]


@pytest.fixture
def writers(application: Application, tmp_path: Path) -> Iterator[Crew]:
    with crew(Place.of(application.stack), tmp_path / "records") as hired:
        yield hired


@pytest.fixture
def storage(application: Application) -> Iterator[DynamoDBStorage]:
    client = application.stack.client("dynamodb")
    yield DynamoDBStorage(application.stack.outputs["TableName"], client)
    client.close()


@pytest.fixture
def ana() -> MemoryTarget:
    return MemoryTarget("resource", new_id("owner"))


def fields(name: str, count: int) -> Steps:
    """Merges, each of a field of its own under one object."""
    return [(f"{name}-{n}", "merge", {"facts": {f"{name}-{n}": n}}) for n in range(count)]


def facts(memory: WorkingMemory) -> dict[str, int]:
    return json.loads(memory.text)["facts"]


def attempts(done: list[Done]) -> list[int]:
    return [writes for process in done for writes in process.attempts]


# --- each its own field ---


async def test_200_writers_of_8_processes_lose_no_field(writers: Crew, storage: DynamoDBStorage) -> None:
    for n in range(ROUNDS):
        target = MemoryTarget("resource", new_id("owner"))
        needed = attempts(writers.race([Plan(target, fields(f"r{n}-{process}", 25)) for process in range(8)]))
        memory = await storage.get_working_memory(target)
        assert facts(memory) == {f"r{n}-{process}-{field}": field for process in range(8) for field in range(25)}
        check(writers.history(f"r{n}-"), memory, structured)
        assert len(needed) == 200 < sum(needed)  # else they did not race
        assert max(needed) <= FEW


async def test_h09_1_two_processes_change_two_fields_200_times(
    writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget
) -> None:
    writers.race([Plan(ana, [("begin", "replace", json.dumps({"town": "Lyon", "unit": "km"}))])])
    needed: list[int] = []
    for n in range(200):
        town: Steps = [(f"town-{n}", "merge", {"town": f"town {n}"})]
        unit: Steps = [(f"unit-{n}", "merge", {"unit": f"unit {n}"})]
        needed += attempts(writers.race([Plan(ana, town), Plan(ana, unit)]))
        memory = await storage.get_working_memory(ana)
        assert json.loads(memory.text) == {"town": f"town {n}", "unit": f"unit {n}"}
    check(writers.history(), memory, structured)
    assert memory.version == 401
    assert sum(needed) > 400
    assert max(needed) <= FEW


async def test_h09_2_50_writers_add_50_keys(writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget) -> None:
    needed = attempts(writers.race([Plan(ana, fields(f"p{process}", 10)) for process in range(5)]))
    memory = await storage.get_working_memory(ana)
    assert sorted(facts(memory)) == sorted(f"p{process}-{n}" for process in range(5) for n in range(10))
    check(writers.history(), memory, structured)
    assert sum(needed) > 50
    assert max(needed) <= FEW


async def test_naive_writers_are_caught(application: Application, storage: DynamoDBStorage, tmp_path: Path) -> None:
    """The same race without conditions loses fields, and the checker says so: else it would prove nothing."""
    target = MemoryTarget("resource", new_id("owner"))
    place = replace(Place.of(application.stack), storage=cast(Any, Naive))
    with crew(place, tmp_path / "naive") as writers:
        writers.race([Plan(target, fields(f"p{process}", 10)) for process in range(4)])
        memory = await storage.get_working_memory(target)
        assert len(facts(memory)) < 40
        with pytest.raises(AssertionError, match="fork: version 1 was acknowledged to "):
            check(writers.history(), memory, structured)


# --- the same field, the whole text ---


async def test_two_writers_of_one_field_leave_one_of_the_two_values(
    writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget
) -> None:
    for n in range(40):
        one, two = (f"{letter * 2_000}{n}" for letter in "ab")
        writers.race([Plan(ana, [(f"{town[0]}-{n}", "merge", {"town": town})]) for town in (one, two)])
        memory = await storage.get_working_memory(ana)
        assert json.loads(memory.text)["town"] in (one, two)
    assert memory.version == 80
    check(writers.history(), memory, structured)


async def test_h09_3_of_two_whole_texts_one_wins_and_never_a_mixture(
    writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget
) -> None:
    for n in range(20):
        one, two = (f"# Notes {n}\n" + f"- {letter}\n" * 5_000 for letter in "ab")
        writers.race(
            [Plan(ana, [(f"{text[-2]}-{n}", "replace", text)], markdown) for text in (one, two)]
            + [Plan(ana, [(f"c-{n}", "conditional", f"# Conditional {n}")], markdown)]
        )
        memory = await storage.get_working_memory(ana)
        assert memory.text in (one, two, f"# Conditional {n}")
    writers.race([Plan(ana, [("c-alone", "conditional", "# Conditional alone")], markdown)])
    done, memory = writers.history(), await storage.get_working_memory(ana)
    check(done, memory, markdown)
    assert memory.text == "# Conditional alone"
    assert {o.outcome for o in done if o.kind == "conditional"} == {"ok", "conflict"}
    assert {o.outcome for o in done if o.kind == "replace"} == {"ok"}


def test_h09_3_a_stale_version_is_refused_over_http(
    application: Application, aside: Callable[..., Future[Any]], ana: MemoryTarget
) -> None:
    """Of four that name the same version one wins, the others get 409 with the version that won."""
    path = f"/api/memory/resources/{ana.id}/working-memory"
    assert application.http.get(path).json()["version"] == 0  # the function is unpacked before four need it at once
    for version in range(4):
        texts = [f"# {n} after {version}" for n in range(4)]
        racing = [aside(application.http.put, path, json={"workingMemory": t, "version": version}) for t in texts]
        answers = [answer.result(60) for answer in racing]
        won = [text for text, answer in zip(texts, answers, strict=True) if answer.status_code == 200]
        stored = application.http.get(path)
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 3
        assert {answer.json()["version"] for answer in answers} == {version + 1}
        assert {answer.headers["etag"] for answer in (*answers, stored)} == {f'"{version + 1}"'}
        assert [stored.json()["workingMemory"]] == won
    stale = application.http.put(path, json={"workingMemory": "late"}, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["version"], stale.headers["etag"]) == (412, 4, '"4"')


# --- all kinds at once ---


@pytest.mark.parametrize("seed", range(3))
async def test_a_serial_order_explains_replaces_merges_and_patches(
    writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget, seed: int
) -> None:
    chance = random.Random(seed)

    def step(process: int, n: int) -> tuple[str, Kind, Any]:
        kind = chance.choice(["merge", "merge", "patch", "replace", "conditional"])
        field = chance.choice(["shared", f"own-{process}"])
        whole = json.dumps({"town": f"{process}-{n}", "facts": {field: n}})
        payload = {"facts": {field: chance.choice([n, None])}, "unit": f"{process}-{n}"}
        return f"{process}-{n}", kind, whole if kind in ("replace", "conditional") else payload

    steps = [[step(process, n) for n in range(12)] for process in range(5)]
    writers.race([Plan(ana, plan, together=False) for plan in steps])
    done, memory = writers.history(), await storage.get_working_memory(ana)
    check(done, memory, structured)
    assert {o.outcome for o in done} <= {"ok", "conflict"}
    assert len({o.kind for o in done}) == 4


# --- a turn's tool against HTTP ---


@contextmanager
def watched(application: Application, target: MemoryTarget) -> Iterator[dict[int, MemoryRevision]]:
    """Who wrote each version: two look so often that none of the record's last revisions is missed."""
    seen: dict[int, MemoryRevision] = {}
    over, client = threading.Event(), application.stack.client("dynamodb")
    key = {"pk": {"S": f"R#{target.id}"}, "sk": {"S": "W"}}

    def look() -> None:
        item = client.get_item(TableName=application.stack.outputs["TableName"], Key=key, ConsistentRead=True)
        for revision in items.memory_from(item.get("Item")).past:
            seen[revision.version] = revision

    def watch() -> None:
        while not over.wait(0.001):
            look()

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()
        look()
        client.close()


def with_all(memory: WorkingMemory, seen: dict[int, MemoryRevision], names: dict[str, str]) -> WorkingMemory:
    """The record with all its revisions, whose writers are the operations that `names` tells."""
    past = [replace(seen[version], writer=names.get(seen[version].writer, seen[version].writer)) for version in seen]
    return replace(memory, past=tuple(sorted(past, key=lambda revision: -revision.version)))


async def test_tool_updates_of_turns_race_patches_of_the_same_resource(
    application: Application, storage: DynamoDBStorage, ana: MemoryTarget
) -> None:
    options = {"workingMemory": {"enabled": True, "scope": "resource", "schema": SCHEMA}}

    def turn(field: str, n: int, thread: str) -> tuple[str, Any]:
        call = "@call updateWorkingMemory " + json.dumps({"memory": {"facts": {field: n}}})
        memory = {"thread": thread, "resource": ana.id, "options": options}
        return "/api/agents/assistant/generate", {"messages": f"{call}\n@say Noted", "memory": memory}

    def patch(field: str, n: int) -> tuple[str, Any]:
        return f"PATCH /api/memory/resources/{ana.id}/working-memory", {"facts": {field: n}}

    threads = [new_id("thread") for _ in range(2)]
    turns = [[turn(f"t{process}-{n}", n, thread) for n in range(10)] for process, thread in enumerate(threads)]
    patches = [[patch(f"p{process}-{n}", n) for n in range(20)] for process in range(2)]
    with watched(application, ana) as seen:
        answers = race(application.http, turns + patches)
    memory = await storage.get_working_memory(ana)
    assert {answer.status for plan in answers for answer in plan} == {200}
    assert facts(memory) == {f"{k}{p}-{n}": n for k, c in (("t", 10), ("p", 20)) for p in range(2) for n in range(c)}
    assert memory.version == 60 == len(seen)
    told = [
        *(tool_update(f"t{p}-{n}", n, answer) for p in range(2) for n, answer in enumerate(answers[p])),
        *(patch_told(f"p{p}-{n}", n, answer) for p in range(2) for n, answer in enumerate(answers[2 + p])),
    ]
    runs = {f"run {answers[p][n].body['runId']}": f"t{p}-{n}" for p in range(2) for n in range(10)}
    check(told, with_all(memory, seen, runs), structured)
    assert len([r for r in seen.values() if r.writer in runs]) == len(runs)


def tool_update(field: str, n: int, answer: Answer) -> Operation:
    """Its version is told to the model only; the record names the run."""
    began, ended = (int(seconds * 1e9) for seconds in (answer.began, answer.ended))
    return Operation(field, "turn", "merge", {"facts": {field: n}}, began, ended)


def patch_told(field: str, n: int, answer: Answer) -> Operation:
    began, ended = (int(seconds * 1e9) for seconds in (answer.began, answer.ended))
    text = digest(answer.body["workingMemory"])
    written = answer.body["version"]
    return Operation(field, "http", "patch", {"facts": {field: n}}, began, ended, "ok", None, written, text)


# --- killed ---


@pytest.mark.parametrize("kind", ["merge", "replace"])
async def test_writers_that_are_killed_leave_nothing_half_written(
    writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget, kind: Kind
) -> None:
    """SIGKILL at random moments of 25 writers, while two others go on."""
    chance = random.Random(kind)
    steady = writers.hire(2)
    for n, writer in enumerate(steady):
        start(writer, Plan(ana, fields(f"steady{n}", 200), together=False))
        go(writer)

    def payload(name: str) -> Any:
        both = {"town": name, "unit": name}
        return both if kind == "merge" else json.dumps(both)

    for n in range(25):
        (victim,) = writers.hire(1)
        steps = [(f"victim{n}-{i}", kind, payload(f"victim{n}-{i}")) for i in range(500)]
        start(victim, Plan(ana, steps, together=False))
        go(victim)
        await asyncio.sleep(chance.uniform(0, 0.3))
        writers.dismiss(victim)
        stored = json.loads((await storage.get_working_memory(ana)).text or "{}")
        assert stored.get("town") == stored.get("unit")
    needed = attempts([writer.pipe.recv() for writer in steady])
    memory, done = await storage.get_working_memory(ana), writers.history()
    check(done, memory, structured)
    assert len(needed) == 400
    assert {o.outcome for o in done if o.id.startswith("steady")} == {"ok"}
    assert max(needed) <= FEW
    if kind == "merge":
        assert len(facts(memory)) == 400
    assert 0 < sum(o.outcome == "unknown" for o in done) <= 25
    assert any(o.outcome == "ok" for o in done if o.id.startswith("victim"))


# --- deleted, created ---


async def test_a_delete_ends_the_memory_of_a_thread_for_good(
    application: Application,
    writers: Crew,
    storage: DynamoDBStorage,
    thread: str,
    owner: str,
    aside: Callable[..., Future[Any]],
) -> None:
    """Writers do not notice that the id has been taken by another thread, whose memory stays empty (case H10)."""
    assert application.create(thread, owner).status_code == 200
    loaded = await storage.get_thread(thread)
    assert isinstance(loaded, Thread)
    target = MemoryTarget("thread", thread)
    plans = [Plan(target, fields(f"p{p}", 400), together=False, thread=loaded) for p in range(4)]
    racing = aside(writers.race, plans)
    eventually(lambda: any(o.outcome == "ok" for o in writers.history()))
    assert application.delete(thread, owner).status_code == 200
    deleted = time.monotonic_ns()
    eventually(lambda: not application.rows_of(thread))
    created = eventually(lambda: application.create(thread, owner).status_code == 200)
    racing.result(timeout=60)
    done = writers.history()
    assert created
    assert not [str(o) for o in done if o.outcome == "ok" and o.invoked > deleted]
    assert {o.outcome for o in done if o.invoked > deleted} == {"refused"}
    assert await storage.get_working_memory(target) == WorkingMemory()
    assert "workingMemory" not in (application.thread(thread)["metadata"] or {})
    assert application.delete(thread, owner).status_code == 200
    eventually(lambda: not application.rows_of(thread))
    assert not [key for key in application.quiet() if thread in "".join(key)]


async def test_initial_values_of_new_threads_race_updates(
    application: Application, writers: Crew, storage: DynamoDBStorage, ana: MemoryTarget
) -> None:
    """Each initial value is one whole text in the order of the versions, none of them is lost or comes twice."""

    def seeds(process: int) -> Steps:
        return [(new_id("seed"), "replace", json.dumps({"town": f"{process}-{n}"})) for n in range(15)]

    plans = [Plan(ana, seeds(p), together=False, seeds=True) for p in range(2)]
    plans += [Plan(ana, fields(f"m{p}", 20), together=False) for p in range(3)]
    with watched(application, ana) as seen:
        writers.race(plans)
    memory, done = await storage.get_working_memory(ana), writers.history()
    assert memory.version == 30 + 60 == len(seen)
    check(done, with_all(memory, seen, {}), structured)
    assert sum(o.id.startswith("seed") for o in done) == 30
