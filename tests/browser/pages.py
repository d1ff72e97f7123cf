"""Studio's pages, as a person finds their way on them."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, Response, expect

# What a page expects to miss: the hot reload of a development server, and a thread before its first message is stored.
_MISSED = re.compile(r"/studio/refresh-events|/api/memory/threads/[^/]+(/messages)?")


class Studio:
    """One tab. `faults` are errors that pages threw and answers that no page should get."""

    def __init__(self, page: Page, base: str, artefacts: Path):
        self.page, self.base, self._artefacts = page, base, artefacts
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("response", self._judge)

    def _judge(self, response: Response) -> None:
        path = urlsplit(response.url).path
        missed = response.status == 404 and _MISSED.fullmatch(path)
        if response.status >= 400 and not missed:
            self.faults.append(f"{response.status} {response.request.method} {path}")

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def shoot(self, name: str) -> None:
        self.page.screenshot(path=self._artefacts / f"{name}.png")

    # --- the chat ---

    def chat(self, agent: str, thread: str = "new") -> None:
        self.open(f"/agents/{agent}/threads/{thread}")

    def send(self, text: str) -> None:
        self.page.get_by_placeholder("Enter your message...").fill(text)
        self.page.get_by_role("button", name="Send").click()

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    def expect_messages(self, *texts: str) -> None:
        """The chat has just these, each once and in this order."""
        expect(self.log.get_by_role("paragraph")).to_have_text([re.sub(r"\s+", " ", text) for text in texts])

    @property
    def thread(self) -> str:
        """The id of the open thread."""
        return urlsplit(self.page.url).path.rpartition("/")[2]

    # --- the threads at the left ---

    @property
    def threads(self) -> Locator:
        return self.page.get_by_role("navigation", name="Threads").get_by_role("listitem")

    def thread_link(self, thread: str) -> Locator:
        return self.threads.filter(has=self.page.locator(f'a[href$="/{thread}"]'))

    # --- the memory panel ---

    def show_memory(self, shown: bool = True) -> None:
        """Open the panel, or close it, which shows the threads again. Studio remembers which of them was shown."""
        switch = self.page.get_by_role("button", name="Memory").first
        if (switch.get_attribute("aria-pressed") == "true") is not shown:
            switch.click()
        expect(switch).to_have_attribute("aria-pressed", str(shown).lower())
