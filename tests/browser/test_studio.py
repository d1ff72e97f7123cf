"""The real Studio, unmodified, in front of the deployed application: what a person does there, and what is stored."""

import json
import re

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.pages import Studio
from tests.e2e.application import THREADS, eventually, new_id
from tests.fixtures.agents import agents
from tests.scripted.server import ScriptedModel

AGENT = "template-agent"  # Studio takes the agent's id for the owner of threads
PROFILE = "# User Profile\n- Name: Ada\n- Location: London\n- Interests: engines"


@pytest.fixture
def thread(api: httpx.Client) -> str:
    """A thread with one question and its answer."""
    thread = new_id()
    body = {"messages": "Hello\n@say Good day.", "memory": {"thread": thread, "resource": AGENT}}
    assert api.post(f"/api/agents/{AGENT}/generate", json=body).status_code == 200
    return thread


def stored(api: httpx.Client, thread: str) -> list[tuple[str, str]]:
    answer = api.get(f"{THREADS}/{thread}/messages", params={"agentId": AGENT})
    return [(message["role"], message["content"]["content"]) for message in answer.json()["messages"]]


def threads(api: httpx.Client) -> dict[str, str]:
    """The titles of the threads that Studio lists, by their ids."""
    listed = api.get(THREADS, params={"resourceId": AGENT, "perPage": "false"}).json()["threads"]
    return {thread["id"]: thread["title"] for thread in listed}


def test_the_list_has_every_agent(studio: Studio) -> None:
    studio.open("")
    for agent in agents:
        expect(studio.page.get_by_role("link", name=agent.display_name)).to_be_visible()
    expect(studio.page).to_have_url(re.compile("/studio/agents$"))
    studio.shoot("1-agents")


def test_a_reply_grows_while_the_model_speaks_and_is_there_once_after_a_reload(
    studio: Studio, api: httpx.Client, scripted: ScriptedModel
) -> None:
    held = new_id("stall")
    said = "Splendid, thank you for asking."
    asked = f"How are you?\n@stall {held}\n@say {said}"
    studio.chat(AGENT)
    studio.send(asked)
    studio.expect_messages(asked, "Splendid")
    studio.shoot("2-reply-grows")
    scripted.release(held)
    studio.expect_messages(asked, said)
    studio.shoot("3-reply-is-whole")
    eventually(lambda: len(stored(api, studio.thread)) == 2)
    assert stored(api, studio.thread) == [("user", asked), ("assistant", said)]
    studio.page.reload()
    studio.expect_messages(asked, said)
    studio.shoot("4-after-reload")


def test_a_tool_waits_for_approval(studio: Studio, api: httpx.Client) -> None:
    asked = 'Delete it\n@call deleteFile {"path": "a.txt"} && @say May I?\n@say It is gone.'
    studio.chat(AGENT)
    studio.send(asked)
    approve = studio.page.get_by_role("button", name="Approve deleteFile")
    expect(approve).to_be_visible()
    studio.shoot("5-approval-asked")
    approve.click()
    expect(studio.log.get_by_text("It is gone.", exact=True)).to_have_count(1)
    studio.shoot("6-approved")
    eventually(lambda: "It is gone." in stored(api, studio.thread)[-1][1])
    studio.page.reload()
    expect(studio.log.get_by_text("It is gone.", exact=True)).to_have_count(1)
    expect(studio.log.get_by_text("May I?", exact=True)).to_have_count(1)
    expect(approve).to_have_count(0)
    studio.shoot("7-approved-after-reload")


def test_a_supervisor_shows_its_sub_agent_under_the_call_and_after_a_reload_each_message_once(
    studio: Studio, api: httpx.Client, scripted: ScriptedModel
) -> None:
    held = new_id("stall")
    said, answer = "Glowing embers keep for hours.", "The researcher says: for hours."
    prompt = json.dumps({"prompt": f"@stall {held}\n@say {said}"})
    asked = f"Ask the researcher\n@call agent-researcher {prompt}\n@say {answer}"
    studio.chat("supervisor")
    studio.send(asked)
    studio.expect_messages(asked, "Glowing")
    studio.shoot("13-sub-agent-speaks")
    scripted.release(held)
    studio.expect_messages(asked, said, answer)
    studio.shoot("14-supervisor-answers")
    eventually(lambda: len(stored(api, studio.thread)) == 2)
    assert stored(api, studio.thread) == [("user", asked), ("assistant", answer)]
    studio.page.reload()
    studio.expect_messages(asked, answer)
    studio.log.get_by_role("button", name="researcher").click()
    studio.expect_messages(asked, said, answer)
    studio.shoot("15-supervisor-after-reload")


def test_the_memory_panel_shows_and_saves_working_memory(studio: Studio, api: httpx.Client, thread: str) -> None:
    where = f"{THREADS}/{thread}/working-memory"
    written = {"workingMemory": "# User Profile\n- Name: Grace", "resourceId": AGENT}
    assert api.post(where, params={"agentId": AGENT}, json=written).status_code == 200
    studio.chat(AGENT, thread)
    studio.show_memory()
    expect(studio.page.get_by_text("Name: Grace")).to_be_visible()
    studio.shoot("8-memory-shown")
    studio.page.get_by_role("button", name="Edit Working Memory").click()
    studio.page.get_by_role("textbox").filter(has_text="Grace").fill(PROFILE)
    studio.page.get_by_role("button", name="Save Changes").click()
    expect(studio.page.get_by_text("Interests: engines")).to_be_visible()
    expect(studio.page.get_by_role("button", name="Edit Working Memory")).to_be_visible()
    studio.shoot("9-memory-saved")
    assert api.get(where, params={"agentId": AGENT, "resourceId": AGENT}).json()["workingMemory"] == PROFILE


def test_a_thread_is_cloned(studio: Studio, api: httpx.Client, thread: str) -> None:
    studio.chat(AGENT, thread)
    studio.expect_messages("Hello @say Good day.", "Good day.")
    before = threads(api)
    studio.show_memory()
    studio.page.get_by_role("button", name="Clone", exact=True).click()
    expect(studio.page.get_by_text("Thread cloned successfully")).to_be_visible()
    [clone] = threads(api).keys() - before.keys()
    assert stored(api, clone) == stored(api, thread) == [("user", "Hello\n@say Good day."), ("assistant", "Good day.")]
    studio.chat(AGENT, clone)
    studio.expect_messages("Hello @say Good day.", "Good day.")
    studio.show_memory(False)
    expect(studio.thread_link(thread)).to_be_visible()
    expect(studio.thread_link(clone)).to_be_visible()
    studio.shoot("10-cloned")


def test_a_thread_is_deleted(studio: Studio, api: httpx.Client, thread: str) -> None:
    studio.chat(AGENT, thread)
    studio.expect_messages("Hello @say Good day.", "Good day.")
    studio.show_memory(False)
    studio.thread_link(thread).get_by_role("button", name="delete thread").click()
    studio.shoot("11-asked-before-deleting")
    studio.page.get_by_role("alertdialog").get_by_role("button", name="Continue").click()
    expect(studio.page.get_by_text("Chat deleted successfully")).to_be_visible()
    expect(studio.thread_link(thread)).to_have_count(0)
    studio.shoot("12-deleted")
    assert api.get(f"{THREADS}/{thread}").status_code == 404
