"""The pages of docs/front-end.md and docs/ai-sdk.md, taken from the text, in a browser, apart from the API's origin."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from local import node
from local.stack import ROOT, Stack
from tests.browser.conftest import PATIENCE
from tests.e2e.application import new_id
from tests.oidc import Issuer

CLIENT = ROOT / "tests/client"
SLOW = "@pause 400\n@say one two three four five six seven eight"


@pytest.fixture(scope="module")
def front_end(agents_stack: Stack) -> Iterator[str]:
    """The address at which the guides' pages are served."""
    node.install(CLIENT)
    variables = {"BASE_URL": agents_stack.base_url, "API_KEY": agents_stack.service_key(), "AGENT": "template-agent"}
    command = [str(node.NODE), "serve.mjs"]
    with subprocess.Popen(
        command, cwd=CLIENT, env=node.environment(variables), stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        yield run.stdout.readline().strip()
        run.terminate()


@pytest.fixture(autouse=True)
def faultless() -> None:
    """That of the folder looks at Studio; `page` looks here."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of its own in which nothing is thrown and the service does not fail."""
    faults: list[str] = []
    context = browser.new_context(viewport={"width": 1100, "height": 700})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.on("console", lambda message: print(message.type, message.text))  # shown where a test fails
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("response", lambda answer: faults.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None)
    tab.on("requestfailed", lambda request: faults.append(f"{request.failure} {request.url}"))
    yield tab
    context.close()
    assert [fault for fault in faults if "ERR_ABORTED" not in fault] == []  # what the page stops is no fault


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def connect(page: Page, stack: Stack, token: str) -> None:
    page.get_by_label("URL").fill(stack.base_url)
    page.get_by_label("Agent").fill("template-agent")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Connect").click()


def paragraphs(page: Page) -> Locator:
    return page.get_by_role("log").locator("p")


def grows(answer: Locator) -> None:
    """Fails unless the beginning of the slow text is shown before its end is."""
    expect(answer).to_contain_text("one")
    assert "eight" not in answer.inner_text()
    expect(answer).to_contain_text("eight")


def test_the_page_chats_reloads_and_edits_the_memory(
    front_end: str, page: Page, agents_stack: Stack, issuer: Issuer, artefacts: Path
) -> None:
    page.goto(front_end)
    connect(page, agents_stack, issuer.token(new_id()))
    say(page, SLOW)
    grows(paragraphs(page).nth(1))
    say(page, '@call updateWorkingMemory {"memory": "- Name: Ada"}\n@say Noted')
    expect(page.get_by_label("Memory")).to_have_value("- Name: Ada")
    said = [SLOW.replace("\n", ""), SLOW.partition("@say ")[2]]
    expect(paragraphs(page)).to_have_count(4)
    page.reload()
    expect(paragraphs(page)).to_have_count(4)
    assert [text.replace("\n", "").strip() for text in paragraphs(page).all_inner_texts()][:2] == said

    page.get_by_label("Memory").fill("- Name: Ada Lovelace")
    page.get_by_role("button", name="Save").click()
    say(page, "@dump")
    expect(paragraphs(page).last).to_contain_text("- Name: Ada Lovelace")
    page.screenshot(path=artefacts / "guide-page.png")


def test_the_page_asks_before_a_tool_runs(front_end: str, page: Page, agents_stack: Stack, issuer: Issuer) -> None:
    page.goto(front_end)
    connect(page, agents_stack, issuer.token(new_id()))
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    say(page, '@call deleteFile {"path":"/x"}\n@say gone')
    expect(paragraphs(page).last).to_have_text("gone")
    assert asked == ['May deleteFile run with {"path":"/x"}?']


def test_the_page_stops_and_tells_what_goes_wrong(
    front_end: str, page: Page, agents_stack: Stack, issuer: Issuer
) -> None:
    page.goto(front_end)
    connect(page, agents_stack, "forged")
    expect(page.get_by_role("status")).to_have_text("Please sign in again.")
    connect(page, agents_stack, issuer.token(new_id()))
    say(page, SLOW)
    expect(paragraphs(page).nth(1)).to_contain_text("one")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    say(page, "@fail 400 prompt too long")
    expect(page.get_by_role("status")).to_have_text("prompt too long")


def test_the_ai_sdks_chat_streams_and_reloads(front_end: str, page: Page, artefacts: Path) -> None:
    page.goto(f"{front_end}/chat/{new_id()}")
    say(page, SLOW)
    grows(paragraphs(page).nth(1))
    say(page, "@call localTime {}\n@say It is late")
    expect(paragraphs(page)).to_have_count(4)
    expect(paragraphs(page).last).to_have_text("It is late")
    say(page, '@call deleteFile {"path":"/x"}\n@say gone')
    page.get_by_role("button", name="Allow").click()
    expect(paragraphs(page).last).to_contain_text("gone")
    page.reload()
    texts = [SLOW.partition("@say ")[2], "It is late", "gone"]
    for text in texts:
        expect(page.get_by_role("log").get_by_text(text, exact=True)).to_have_count(1)
    page.screenshot(path=artefacts / "guide-ai-sdk.png")
