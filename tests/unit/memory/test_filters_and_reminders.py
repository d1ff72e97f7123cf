"""Keys of metadata filters (TH-7) and which messages are reminders (M-RC-8)."""

from typing import Any

import pytest

from threadkeep.memory.filters import metadata_key_problem
from threadkeep.memory.reminders import is_reminder
from threadkeep.storage.port import Message


@pytest.mark.parametrize("key", ["a", "_a", "A1_b", "x" * 128])
def test_th7_legal_keys(key: str) -> None:
    assert metadata_key_problem(key) is None


@pytest.mark.parametrize("key", ["", "1a", "a.b", "a-b", "a b", "ü", "a\n", "x" * 129, "__proto__", "prototype"])
def test_th7_illegal_keys(key: str) -> None:
    assert metadata_key_problem(key)


def shown(role: str, content: dict[str, Any], kind: str | None = None) -> bool:
    return not is_reminder(Message("m", "t", role, {"format": 2, "parts": []} | content, 1, "o", kind))


def text(value: Any) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    "role,content,kind",
    [
        ("signal", {}, "system-reminder"),
        ("signal", {}, "reactive"),
        ("user", {"metadata": {"systemReminder": {"type": "x"}}}, None),
        ("user", {"metadata": {"dynamicAgentsMdReminder": False}}, None),
        ("user", {"parts": [{"type": "file"}, text("<system-reminder>x</system-reminder>")]}, None),
    ],
)
def test_m_rc_8_reminders_are_hidden(role: str, content: Any, kind: str | None) -> None:
    assert not shown(role, content, kind)


@pytest.mark.parametrize(
    "role,content,kind",
    [
        ("signal", {}, "user"),
        ("signal", {}, "state"),
        ("signal", {"parts": [text("<system-reminder>")]}, None),
        ("user", {"metadata": {"systemReminder": True}}, None),
        ("user", {"metadata": ["systemReminder"]}, None),
        ("user", {"parts": [text("see <system-reminder>")]}, None),
        ("user", {"parts": [text("a"), text("<system-reminder>")]}, None),
        ("user", {"parts": [text(5)]}, None),
        ("assistant", {"parts": [text("<system-reminder>")]}, "system-reminder"),
    ],
)
def test_m_rc_8_everything_else_is_shown(role: str, content: Any, kind: str | None) -> None:
    assert shown(role, content, kind)
