"""`threadkeep threads ...`."""

import sys

from threadkeep_client.cli import show
from threadkeep_client.cli.session import USAGE, CommandFailed, Session
from threadkeep_client.models import Message, Thread


def list_threads(session: Session) -> None:
    """List threads, the one changed last first"""
    options = session.options
    page = session.client.list_threads(
        resource_id=options.resource, page=options.page, per_page=options.per_page, order_by="updatedAt"
    )
    if session.json:
        return show.as_json(page)
    rows = [[thread.id, thread.resource_id, time_of(thread.updated_at), thread.title] for thread in page.threads]
    show.table(["ID", "OWNER", "CHANGED", "TITLE"], rows)
    if page.has_more:
        print(f"{page.total} threads in all; --page {page.page + 1} shows more", file=sys.stderr)


def show_thread(session: Session) -> None:
    """Show a thread and its newest messages, oldest first"""
    options, client = session.options, session.client
    thread = client.get_thread(options.thread, resource_id=options.resource)
    page = client.list_messages(
        options.thread, resource_id=options.resource, per_page=options.per_page, page=options.page, direction="DESC"
    )
    if session.json:
        return show.as_json({"thread": thread, **page.model_dump(mode="json", by_alias=True, exclude_unset=True)})
    _head(thread, page.total)
    for message in page.messages:
        show.text(f"\n{message.role}  {time_of(message.created_at)}\n{_said(message)}")
    if page.has_more:
        print(f"\nThere are older messages; --page {page.page + 1} shows them", file=sys.stderr)


def delete_thread(session: Session) -> None:
    """Delete a thread with all its messages; asks first"""
    options = session.options
    if not options.yes:
        _confirm(f"Delete thread {options.thread} with all its messages?")
    result = session.client.delete_thread(options.thread, resource_id=options.resource)
    show.as_json(result) if session.json else print(f"Deleted {options.thread}")


def clone_thread(session: Session) -> None:
    """Copy a thread with its messages"""
    options = session.options
    cloned = session.client.clone_thread(
        options.thread,
        source_resource_id=options.resource,
        new_thread_id=options.new_id,
        title=options.title,
        message_limit=options.limit,
    )
    if session.json:
        return show.as_json(cloned)
    count = len(cloned.message_id_map)
    print(f"Copied {count} message{'' if count == 1 else 's'} of {options.thread} to {cloned.thread.id}")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed("Nobody is here to confirm; --yes does without", USAGE)
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was deleted")


def _head(thread: Thread, messages: int) -> None:
    rows = [
        ["Thread", thread.id],
        ["Owner", thread.resource_id],
        ["Title", thread.title],
        ["Created", time_of(thread.created_at)],
        ["Changed", time_of(thread.updated_at)],
        ["Messages", str(messages)],
    ]
    for name, value in rows:
        show.text(f"{name:10}{show.clean(value)}")


def _said(message: Message) -> str:
    """The text of a message, and one line for each call."""
    lines: list[str] = []
    for part in message.content.get("parts", []):
        if part.get("type") == "text":
            lines.append(str(part.get("text", "")))
        elif part.get("type") == "tool-invocation":
            call = part.get("toolInvocation", {})
            lines.append(f"[{call.get('toolName')}: {call.get('state')}]")
        elif part.get("type") == "file":
            lines.append(f"[file: {part.get('mimeType')}]")
    return "\n".join(lines)


def time_of(iso: str) -> str:
    """`2026-11-29 17:44` (UTC) of the wire's `2026-11-29T17:44:33.791Z`."""
    return iso[:16].replace("T", " ")
