"""A Chromium, and Studio's pages in it. Screenshots stay in `.local/artefacts/browser`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from local.stack import ROOT, Stack
from local.studio import fetch
from tests.browser.chromium import OPTIONS, executable
from tests.browser.pages import Studio
from tests.conftest import client_of

PATIENCE = 60_000  # ms; functions that are called for the first time start slowly on a busy machine
ARTEFACTS = ROOT / ".local/artefacts/browser"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(OPTIONS))
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """The folder for screenshots, emptied once."""
    shutil.rmtree(ARTEFACTS, ignore_errors=True)
    return ARTEFACTS


@pytest.fixture(scope="session")
def studio(browser: Browser, agents_stack: Stack, artefacts: Path) -> Iterator[Studio]:
    """Studio in one window, as a person has it open; its pages share what the browser keeps."""
    fetch(print)
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield Studio(context.new_page(), f"{agents_stack.base_url}/studio", artefacts)
    context.close()


@pytest.fixture(scope="session")
def api(agents_stack: Stack) -> Iterator[httpx.Client]:
    """What is stored, as another client with the service key sees it."""
    with client_of(agents_stack) as client:
        yield client


@pytest.fixture(autouse=True)
def faultless(studio: Studio) -> Iterator[None]:
    """Nothing that a page does in a test throws, is refused, or fails in the house."""
    studio.faults.clear()
    yield
    assert studio.faults == []
