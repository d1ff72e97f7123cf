"""Working memory of the deployed application: its routes, its versions, its owners, and what threads show of it.

The emulator enforces the functions' policies here.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from local.stack import Stack
from tests.conftest import client_of
from tests.e2e.application import THREADS, Application, as_user, eventually, new_id
from tests.oidc import Issuer

TEMPLATE = "# User Profile\n- Name:\n- Location:\n- Interests:"
ADA, GRACE = "# User Profile\n- Name: Ada\n", "# User Profile\n- Name: Grace\n"
MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
def application(house: Stack) -> Iterator[Application]:
    with client_of(house) as http:
        yield Application(house, http, "template-agent")


@pytest.fixture
def other(owner: str) -> str:
    """Another resource."""
    return owner.replace("owner", "other")


def of_thread(thread: str, agent: str, **query: str) -> str:
    return f"{THREADS}/{thread}/working-memory?{httpx.QueryParams({'agentId': agent, **query})}"


def of_resource(resource: str, agent: str | None = None) -> str:
    return f"/api/memory/resources/{resource}/working-memory" + (f"?agentId={agent}" if agent else "")


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_wm2_the_scopes_never_see_each_other(application: Application, thread: str, owner: str) -> None:
    http = application.http
    second = new_id()
    for created in (thread, second):
        ok(application.create(created, owner))
    for agent, text in (("template-agent", ADA), ("thread-agent", GRACE)):
        body = {"workingMemory": text, "resourceId": owner}
        assert ok(http.post(of_thread(thread, agent), json=body)) == {"success": True}

    def shown(where: str, agent: str) -> tuple[str | None, str, bool]:
        found = ok(http.get(of_thread(where, agent, resourceId=owner)))
        assert found["workingMemoryTemplate"] == {"format": "markdown", "content": TEMPLATE}
        return found["workingMemory"], found["source"], found["threadExists"]

    assert shown(thread, "template-agent") == shown(second, "template-agent") == (ADA, "resource", True)
    assert shown(thread, "thread-agent") == (GRACE, "thread", True)
    assert shown(second, "thread-agent") == (None, "thread", True)
    assert shown(new_id(), "template-agent") == (ADA, "resource", False)
    assert shown(new_id(), "thread-agent") == (None, "thread", False)


def test_wm17_the_tool_merges_into_what_is_stored(application: Application, thread: str, owner: str) -> None:
    application.agent = "schema-agent"
    http = application.http
    ok(http.put(of_resource(owner, "schema-agent"), json={"workingMemory": {"name": "Lin", "tags": ["a"]}}))
    call = {"memory": {"location": "Paris", "prefs": {"color": "red"}}}
    said = application.say(f"@call updateWorkingMemory {json.dumps(call)}\n@say Noted.", thread, owner)
    assert said["text"] == "Noted."
    patch = {"tags": None, "prefs": {"size": "M"}}
    merged = ok(http.patch(of_resource(owner, "schema-agent"), json=patch, headers=MERGE_PATCH))
    expected = {"name": "Lin", "location": "Paris", "prefs": {"color": "red", "size": "M"}}
    assert json.loads(merged["workingMemory"]) == expected
    assert merged["version"] == 3
    assert [r["writer"] for r in merged["revisions"]] == ["http", f"run {said['runId']}", "http"]
    shown = ok(http.get(of_thread(new_id(), "schema-agent", resourceId=owner)))
    assert json.loads(shown["workingMemory"]) == expected
    assert json.loads(shown["workingMemoryTemplate"]["content"]).keys() == {"name", "location", "tags", "prefs"}


def test_versions_guard_every_write(application: Application, thread: str, owner: str) -> None:
    http = application.http
    ok(application.create(thread, owner))
    assert http.get(of_resource(owner)).headers["etag"] == '"0"'
    first = http.put(of_resource(owner), json={"workingMemory": ADA}, headers={"If-Match": '"0"'})
    assert (ok(first)["version"], first.headers["etag"]) == (1, '"1"')
    for answer in (
        http.put(of_resource(owner), json={"workingMemory": "late"}, headers={"If-Match": '"0"'}),
        http.patch(of_resource(owner), json={"a": 1}, headers=MERGE_PATCH | {"If-Match": '"0", "7"'}),
        http.post(
            of_thread(thread, "template-agent"),
            json={"workingMemory": "late", "resourceId": owner},
            headers={"If-Match": '"2"'},
        ),
    ):
        assert (answer.status_code, answer.json()["version"], answer.headers["etag"]) == (412, 1, '"1"')
        assert "ETag" in answer.headers["access-control-expose-headers"]
    stale = http.post(
        of_thread(thread, "template-agent"), json={"workingMemory": "late", "resourceId": owner, "version": 0}
    )
    assert (stale.status_code, stale.json()["version"]) == (409, 1)
    assert http.put(of_resource(owner), json={"workingMemory": "x"}, headers={"If-Match": 'W/"1"'}).status_code == 400
    assert ok(http.get(of_resource(owner))) == first.json()


def test_h9_concurrent_patches_all_stay(application: Application, owner: str) -> None:
    def patch(n: int) -> Any:
        return ok(application.http.patch(of_resource(owner), json={"fields": {f"f{n}": n}}, headers=MERGE_PATCH))

    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(patch, range(12)))
    assert sorted(reply["version"] for reply in replies) == list(range(1, 13))
    found = ok(application.http.get(of_resource(owner)))
    assert json.loads(found["workingMemory"]) == {"fields": {f"f{n}": n for n in range(12)}}
    assert (found["version"], len(found["revisions"])) == (12, 8)


def test_users_reach_their_own_memory_only(
    application: Application, house: Stack, issuer: Issuer, thread: str, owner: str, other: str
) -> None:
    ok(application.create(thread, owner))
    with as_user(house, issuer, owner) as own, as_user(house, issuer, other) as foreign:
        ok(own.put(of_resource(owner), json={"workingMemory": ADA}))
        assert ok(own.get(of_thread(thread, "template-agent")))["workingMemory"] == ADA
        ok(own.post(of_thread(thread, "thread-agent"), json={"workingMemory": GRACE, "resourceId": other}))
        for answer in (
            foreign.get(of_resource(owner)),
            foreign.put(of_resource(owner), json={"workingMemory": "x"}),
            foreign.patch(of_resource(owner), json={"a": 1}),
            foreign.get(of_thread(thread, "template-agent", resourceId=owner)),
            foreign.get(of_thread(thread, "thread-agent")),
            foreign.post(of_thread(thread, "thread-agent"), json={"workingMemory": "x", "resourceId": owner}),
        ):
            assert answer.status_code == 403, answer.text
            assert list(answer.json()) == ["error"]
        assert ok(foreign.get(of_thread(new_id(), "template-agent", resourceId=owner)))["workingMemory"] is None
        assert ok(own.get(of_resource(owner)))["version"] == 1
        assert ok(own.get(of_thread(thread, "thread-agent")))["workingMemory"] == GRACE


def test_wm20_metadata_seeds_it_shows_it_and_never_turns_it_back(
    application: Application, thread: str, owner: str
) -> None:
    application.agent = "thread-agent"
    http, here = application.http, f"{THREADS}/{thread}?agentId=thread-agent"
    created = ok(application.create(thread, owner, metadata={"n": 1, "workingMemory": ADA}))
    assert created["metadata"] == {"n": 1, "workingMemory": ADA}
    ok(http.post(of_thread(thread, "thread-agent"), json={"workingMemory": GRACE, "resourceId": owner}))
    assert application.thread(thread)["metadata"] == {"n": 1, "workingMemory": GRACE}
    back = ok(http.patch(here, json={"metadata": created["metadata"] | {"n": 2}}))
    assert back["metadata"] == {"n": 2, "workingMemory": GRACE}
    assert ok(http.patch(here, json={"metadata": {}}))["metadata"] == {"workingMemory": GRACE}
    assert ok(http.patch(here, json={"metadata": {"workingMemory": "# New"}}))["metadata"] == {"workingMemory": "# New"}
    listed = ok(http.get(THREADS, params={"resourceId": owner}))["threads"]
    assert [found["metadata"] for found in listed] == [{"workingMemory": "# New"}]
    copy = ok(http.post(f"{THREADS}/{thread}/clone?agentId=thread-agent", json={}))["thread"]
    assert copy["metadata"]["workingMemory"] == "# New"


def test_a_deleted_threads_memory_is_gone_and_a_resources_stays(
    application: Application, thread: str, owner: str
) -> None:
    http = application.http
    ok(application.create(thread, owner, metadata={"workingMemory": ADA}))
    ok(http.post(of_thread(thread, "thread-agent"), json={"workingMemory": GRACE, "resourceId": owner}))
    ok(application.delete(thread, owner))
    gone = ok(http.get(of_thread(thread, "thread-agent", resourceId=owner)))
    assert (gone["workingMemory"], gone["threadExists"]) == (None, False)
    late = http.post(of_thread(thread, "thread-agent"), json={"workingMemory": "late", "resourceId": owner})
    assert late.status_code == 404
    assert ok(http.get(of_resource(owner)))["workingMemory"] == ADA
    eventually(lambda: not application.rows_of(thread))
    created = eventually(lambda: application.create(thread, owner).status_code == 200)
    assert created
    assert ok(http.get(of_thread(thread, "thread-agent", resourceId=owner)))["workingMemory"] is None


def test_h14_reading_without_writing(application: Application, thread: str, owner: str) -> None:
    ok(application.http.put(of_resource(owner), json={"workingMemory": ADA}))
    application.agent = "reader"
    said = application.say('@call updateWorkingMemory {"memory": "# Gone"}\n@dump', thread, owner)
    assert "Ada" in said["text"]
    refused = application.http.put(of_resource(owner, "reader"), json={"workingMemory": "x"})
    assert (refused.status_code, refused.json()["issues"][0]["field"]) == (400, "agentId")
    assert ok(application.http.get(of_resource(owner)))["version"] == 1
    assert application.thread(thread) is None


def test_what_breaks_a_rule_is_400_and_names_it(application: Application, thread: str, owner: str) -> None:
    ok(application.create(thread, owner))
    long, named = "x" * 32_769, {"resourceId": owner}
    answers = [
        application.http.post(of_thread(thread, "template-agent"), json={"workingMemory": long} | named),
        application.http.put(of_resource(owner), json={"workingMemory": long}),
        application.http.patch(f"{THREADS}/{thread}", json={"metadata": {"workingMemory": long}}),
        application.http.patch(of_resource(owner, "schema-agent"), json={"name": long}, headers=MERGE_PATCH),
    ]
    assert [answer.status_code for answer in answers] == [400] * 4
    issues = [answer.json()["issues"][0] for answer in answers]
    assert {issue["field"].rpartition(".")[2] for issue in issues} == {"workingMemory"}
    assert all("32768" in issue["message"] for issue in issues)
    broken = application.http.patch(of_resource(owner, "schema-agent"), json={"tags": "x"}, headers=MERGE_PATCH)
    assert (broken.status_code, broken.json()["issues"][0]["field"]) == (400, "workingMemory.tags")
    assert ok(application.http.get(of_resource(owner)))["version"] == 0


def test_no_policy_stood_in_the_way(house: Stack) -> None:
    """Last, about all that was called above."""
    assert "AccessDenied" not in (house.home / "emulator.log").read_text()
