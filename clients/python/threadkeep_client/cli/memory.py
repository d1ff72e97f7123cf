"""`threadkeep memory ...`."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from threadkeep_client.cli import show
from threadkeep_client.cli.session import CHANGED, USAGE, CommandFailed, Session
from threadkeep_client.cli.threads import time_of
from threadkeep_client.errors import ThreadkeepError, VersionMismatch
from threadkeep_client.models import ResourceMemory, Success, ThreadMemory


def show_memory(session: Session) -> None:
    """Show what is kept for an owner, or what an agent keeps for a thread"""
    found = _read(session)
    if session.json:
        return show.as_json(found)
    if isinstance(found, ResourceMemory) and session.options.history:
        rows = [[str(past.version), time_of(past.updated_at), past.writer] for past in found.revisions]
        return show.table(["VERSION", "CHANGED", "BY"], rows)
    if found.working_memory is None:
        return print("Nothing is kept yet", file=sys.stderr)
    print(_about(found), file=sys.stderr)
    show.text(found.working_memory)


def edit_memory(session: Session) -> None:
    """Change it in your editor ($VISUAL, else $EDITOR); refused if somebody else changed it meanwhile"""
    draft = Draft.of(_read(session))
    file = _temporary(draft.shown, ".json" if draft.is_json else ".md")
    try:
        text = draft.edited(_in_editor(file))
        if text is None:
            file.unlink()
            return print("Nothing was changed", file=sys.stderr)
        written = _replace(session, text, draft.version)
    except VersionMismatch as error:
        raise CommandFailed(
            f"Somebody else changed it meanwhile: you edited version {draft.version}, version {error.version} is "
            f"stored now. Nothing was written; your text is kept in {file}",
            CHANGED,
        ) from error
    except (ThreadkeepError, CommandFailed) as error:
        raise CommandFailed(f"{error}. Nothing is known to be written{_kept(file, draft)}") from error
    file.unlink()
    _report(session, written)


def set_memory(session: Session) -> None:
    """Replace it with a text, or with standard input where none is given"""
    given: str | None = session.options.text
    text = sys.stdin.read() if given is None else given
    _report(session, _replace(session, text, session.options.if_version))


def patch_memory(session: Session) -> None:
    """Merge a JSON object into an owner's: objects merge deeply, null deletes, lists are replaced"""
    options = session.options
    try:
        patch: Any = json.loads(options.patch)
    except ValueError as error:
        raise CommandFailed(f"The patch is not JSON: {error}", USAGE) from error
    if not isinstance(patch, dict):
        raise CommandFailed('The patch must be a JSON object, such as {"city": "Oslo"}', USAGE)
    changes = cast(dict[str, Any], patch)
    written = session.client.patch_resource_memory(
        options.resource, changes, agent_id=options.agent, version=options.if_version
    )
    _report(session, written)


@dataclass(frozen=True, slots=True)
class Draft:
    """A working memory as it is edited: JSON with indentation, all else as it is; the template where it is empty."""

    stored: str
    shown: str
    is_json: bool
    version: int | None

    @classmethod
    def of(cls, found: ThreadMemory | ResourceMemory) -> "Draft":
        stored = found.working_memory or ""
        template = found.working_memory_template if isinstance(found, ThreadMemory) else None
        text = stored or (template.content if template else "")
        value = _object(text)
        shown = text if value is None else json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        return cls(stored, shown, value is not None, found.stored_version)

    def edited(self, text: str) -> str | None:
        """The new text to store, None if nothing was changed. Editors may add a line break at the end.

        Raises `CommandFailed` for an empty text, which is rather a mishap than a wish to forget everything, and where
        JSON is broken now.
        """
        if not self.shown.endswith("\n"):
            text = text.removesuffix("\n")
        if text == self.shown or not (text.strip() or self.stored):
            return None
        if not text.strip():
            raise CommandFailed(
                "The text is empty; `threadkeep memory set` with an empty text clears an owner's memory"
            )
        return self._edited_json(text) if self.is_json else text

    def _edited_json(self, text: str) -> str | None:
        value = _object(text)
        if value is None:
            raise CommandFailed("The text is no JSON object any more; `threadkeep memory set` stores any text")
        return None if _sorted(value) == _sorted(_object(self.stored)) else json.dumps(value, ensure_ascii=False)


def _read(session: Session) -> ThreadMemory | ResourceMemory:
    options, client = session.options, session.client
    if _of_thread(session):
        return client.get_working_memory(options.thread, agent_id=options.agent, resource_id=options.resource)
    return client.get_resource_memory(options.resource, agent_id=options.agent)


def _replace(session: Session, text: str, version: int | None) -> Success | ResourceMemory:
    options, client = session.options, session.client
    if _of_thread(session):
        return client.update_working_memory(
            options.thread, text, agent_id=options.agent, resource_id=options.resource, version=version
        )
    return client.replace_resource_memory(options.resource, text, agent_id=options.agent, version=version)


def _of_thread(session: Session) -> bool:
    """Whether it is about what an agent keeps for a thread, else about an owner. Raises `CommandFailed`."""
    options = session.options
    if options.thread is None and options.resource is None:
        raise CommandFailed("Whose memory? Give --resource, or --thread and --agent", USAGE)
    if options.thread is not None and options.agent is None:
        raise CommandFailed("A thread's memory is kept by an agent: give --agent, too", USAGE)
    return options.thread is not None


def _about(found: ThreadMemory | ResourceMemory) -> str:
    version = f"version {found.stored_version}"
    if isinstance(found, ThreadMemory):
        return f"{version}, kept for the {'thread' if found.source == 'thread' else 'owner of the thread'}"
    when = f", changed {time_of(found.updated_at)} by {show.clean(found.writer or '?')}" if found.updated_at else ""
    return version + when


def _report(session: Session, written: Success | ResourceMemory) -> None:
    if session.json:
        return show.as_json(written)
    print(f"Stored as version {written.stored_version}")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _sorted(value: dict[str, Any] | None) -> str:
    """JSON text by which two values can be compared: in Python `True == 1`, in JSON it is not."""
    return json.dumps(value, sort_keys=True)


def _temporary(text: str, suffix: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="threadkeep-", suffix=suffix)
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
    return Path(name)


def _kept(file: Path, draft: Draft) -> str:
    """What to say of the file of an edit that failed. It is removed where nobody's work is in it."""
    if not file.exists():
        return ""
    if file.read_bytes().strip() in (b"", draft.shown.encode().strip()):
        file.unlink()
        return ""
    return f"; your text is kept in {file}"


def _in_editor(file: Path) -> str:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)  # Ctrl-C is the editor's
    try:
        code = subprocess.run([*shlex.split(editor), str(file)]).returncode
    except (OSError, ValueError) as error:
        raise CommandFailed(f"The editor {editor!r} cannot be started; set EDITOR to another") from error
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise CommandFailed(f"The editor ended with code {code}")
    try:
        return file.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise CommandFailed("The editor left no text in UTF-8") from error
