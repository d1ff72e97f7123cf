"""A thread of 2,500 messages in the deployed application."""

from typing import Any

import httpx

from tests.e2e.application import THREADS, new_id

LENGTH = 2_500
BATCH = 1_000
START = 1_700_000_000_000  # the first message's time in milliseconds; the others follow by the second
SAVE, DELETE = "/api/memory/save-messages", "/api/memory/messages/delete"


def role(n: int) -> str:
    return "assistant" if n % 2 else "user"


def row(n: int, thread: str, owner: str) -> dict[str, Any]:
    metadata = {"metadata": {"decade": n // 10}} if n % 10 == 0 else {}
    content = {"format": 2, "parts": [{"type": "text", "text": f"message {n}"}]} | metadata
    return {
        "id": f"{thread}-{n}", "threadId": thread, "resourceId": owner, "role": role(n), "content": content,
        "createdAt": START + n * 1000,
    }  # fmt: skip


class Long:
    """A thread of 2,500 messages."""

    def __init__(self, http: httpx.Client):
        self.http, self.id, self.owner = http, new_id("long"), new_id("owner")

    def fill(self) -> None:
        created = self.http.post(
            f"{THREADS}?agentId=assistant", json={"threadId": self.id, "resourceId": self.owner, "title": "Long"}
        )
        assert created.status_code == 200, created.text
        for start in range(0, LENGTH, BATCH):
            self.save(range(start, min(start + BATCH, LENGTH)))

    def save(self, numbers: range) -> None:
        rows = [row(n, self.id, self.owner) for n in numbers]
        answer = self.http.post(f"{SAVE}?agentId=assistant", json={"messages": rows})
        assert answer.status_code == 200, answer.text
        assert [m["id"] for m in answer.json()["messages"]] == [r["id"] for r in rows]

    def page(self, **query: Any) -> Any:
        answer = self.http.get(f"{THREADS}/{self.id}/messages", params={"agentId": "assistant"} | query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def numbers(self, **query: Any) -> tuple[list[int], int]:
        """Which messages are on a page, and the total."""
        page = self.page(**query)
        return [int(m["id"].rpartition("-")[2]) for m in page["messages"]], page["total"]
