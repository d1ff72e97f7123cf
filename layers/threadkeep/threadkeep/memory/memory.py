"""`Memory`: what a deployer gives an agent so that it remembers."""

from typing import Any

from threadkeep import ids
from threadkeep.errors import AccessDenied, ConfigurationError, InvalidInput, Issue, NotFound
from threadkeep.jsontext import Json
from threadkeep.memory.options import MemoryOptions, configured, merged
from threadkeep.memory.working_memory import Invalid, prompt, seeds
from threadkeep.memory.working_memory.form import Form, form_of
from threadkeep.memory.working_memory.updates import replaced
from threadkeep.memory.working_memory.writing import changed
from threadkeep.storage.port import MemorySeed, MemoryTarget, NewThread, Storage, Thread, ThreadChange, WorkingMemory

WRITER = "library"


class Memory:
    """Which parts of memory an agent uses, and how.

    Keyword arguments are the fields of `MemoryOptions`, for example
    `Memory(last_messages=20, generate_title=True)`. `storage` None means the deployment's table; it is
    looked up for each turn and never kept here, so one Memory may serve many agents (case H04).
    Raises `ConfigurationError` for an option that does not exist or breaks a rule.

    The methods are for programs. They take the options of one call as JSON, as a turn does (CFG-7), and a
    `storage`, which is needed where the Memory has none of its own (`ConfigurationError`). They check an owner
    only where `resource_id` names one.
    """

    def __init__(self, *, storage: Storage | None = None, **options: Any):
        self.storage = storage
        self.options: MemoryOptions = configured(options)

    async def get_working_memory(
        self,
        *,
        thread_id: str | None = None,
        resource_id: str | None = None,
        options: Json = None,
        storage: Storage | None = None,
    ) -> str | None:
        """The stored text; None where it is empty, or working memory is disabled (WM-5).

        Scope thread: None without `thread_id` or where the thread does not exist; raises `AccessDenied` if
        another resource owns it. Scope resource: raises `InvalidInput` without `resource_id` (E5).
        """
        effective = merged(self.options, options)
        return await self._read(effective, thread_id, resource_id, storage)

    async def update_working_memory(
        self,
        text: str,
        *,
        thread_id: str | None = None,
        resource_id: str | None = None,
        version: int | None = None,
        options: Json = None,
        storage: Storage | None = None,
    ) -> WorkingMemory:
        """Replace the stored text as a whole, and return what is stored then (WM-6). "" empties it.

        With a schema the text must be a JSON object that the schema accepts. The same text as is stored makes
        no new version. With `version`, only that version is replaced.

        Raises `InvalidInput` while disabled (E6) or read-only, for a text that must not be stored, and without
        the id that the scope needs (E5); `NotFound` for an unknown thread in scope thread (E7), `AccessDenied`
        for another resource's, `ThreadGone` if it is deleted meanwhile, `VersionMismatch` for another version.
        """
        effective = merged(self.options, options)
        working = effective.working_memory
        if not working.enabled:
            raise _argument("workingMemory", "is not enabled in this memory")
        _refuse_read_only(effective)
        store = self._store(storage)
        thread = await _thread(store, thread_id, resource_id) if working.scope == "thread" else None
        target = MemoryTarget("thread", thread.id) if thread else MemoryTarget("resource", _needed(resource_id))
        try:
            written = await changed(
                store,
                target,
                lambda stored: replaced(working, stored, text),
                writer=WRITER,
                thread=thread,
                expected=version,
            )
        except Invalid as invalid:
            raise invalid.at("workingMemory") from invalid
        return written.memory

    def get_working_memory_template(self, options: Json = None) -> Form | None:
        """The Markdown template or the JSON Schema that the memory follows; None while it is disabled (WM-4)."""
        working = merged(self.options, options).working_memory
        return form_of(working) if working.enabled else None

    async def get_system_message(
        self,
        *,
        thread_id: str | None = None,
        resource_id: str | None = None,
        options: Json = None,
        storage: Storage | None = None,
    ) -> str | None:
        """The system text that shows working memory to a model, as a run has it (WM-27, M-DISC-7).

        None while it is disabled, or shown by state signals instead. Raises as `get_working_memory`.
        """
        effective = merged(self.options, options)
        working = effective.working_memory
        if not working.enabled or working.use_state_signals:
            return None
        stored = await self._read(effective, thread_id, resource_id, storage)
        read_only = effective.read_only or not working.agent_managed
        return prompt.system_text(form_of(working), stored or "", read_only=read_only, vnext=working.vnext)

    async def create_thread(
        self,
        *,
        resource_id: str,
        thread_id: str | None = None,
        title: str = "",
        metadata: dict[str, Json] | None = None,
        options: Json = None,
        storage: Storage | None = None,
    ) -> Thread:
        """Create a thread, or return the owner's own of that id unchanged (TH-2, TH-3). Without id it gets one.

        `metadata["workingMemory"]` is the first text of the thread's or the owner's working memory, as the
        scope says (WM-20). Raises `InvalidInput` for an id or a text that breaks a rule, otherwise as
        `Storage.create_thread`.
        """
        effective = merged(self.options, options)
        rest, seed = _divided(effective, metadata)
        new_id = ids.new_id() if thread_id is None else ids.check("threadId", thread_id)
        new = NewThread(new_id, ids.check("resourceId", resource_id), title, rest, memory=seed)
        return await self._store(storage).create_thread(new)

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        metadata: dict[str, Json] | None = None,
        resource_id: str | None = None,
        options: Json = None,
        storage: Storage | None = None,
    ) -> Thread:
        """Change the title or top-level keys of the metadata; None leaves a field as it is (TH-8).

        `metadata["workingMemory"]` replaces the text of working memory (WM-20), unless it is one that this
        memory has had before (M-DISC-6). Raises as `create_thread`, and `NotFound`.
        """
        effective = merged(self.options, options)
        rest, seed = _divided(effective, metadata)
        change = ThreadChange(title, rest, merge=True, memory=seed)
        return await self._store(storage).update_thread(thread_id, change, resource_id=resource_id)

    async def _read(
        self, options: MemoryOptions, thread_id: str | None, resource_id: str | None, storage: Storage | None
    ) -> str | None:
        if not options.working_memory.enabled:
            return None
        store = self._store(storage)
        if options.working_memory.scope == "resource":
            target = MemoryTarget("resource", _needed(resource_id))
            return (await store.get_working_memory(target)).text or None
        thread = await store.get_thread(thread_id) if thread_id else None
        return _owned(thread, resource_id).memory if thread else None

    def _store(self, storage: Storage | None) -> Storage:
        found = storage or self.storage
        if found is None:
            raise ConfigurationError("This Memory has no storage of its own; pass storage=")
        return found


async def _thread(store: Storage, thread_id: str | None, resource_id: str | None) -> Thread:
    if not thread_id:
        raise _argument("threadId", "is needed: the scope of working memory is thread")
    thread = await store.get_thread(thread_id)
    if thread is None:
        raise NotFound("Thread not found")
    return _owned(thread, resource_id)


def _owned(thread: Thread, resource_id: str | None) -> Thread:
    if resource_id is not None and resource_id != thread.resource_id:
        raise AccessDenied()
    return thread


def _needed(resource_id: str | None) -> str:
    if not resource_id:
        raise _argument("resourceId", "is needed: the scope of working memory is resource; or set the scope to thread")
    return ids.check("resourceId", resource_id)


def _divided(
    options: MemoryOptions, metadata: dict[str, Json] | None
) -> tuple[dict[str, Json] | None, MemorySeed | None]:
    try:
        rest, seed = seeds.divided(options.working_memory, metadata, WRITER)
    except Invalid as invalid:
        raise invalid.at(f"metadata.{seeds.KEY}") from invalid
    if seed:
        _refuse_read_only(options)
    return rest, seed


def _refuse_read_only(options: MemoryOptions) -> None:
    if options.read_only:
        raise _argument("workingMemory", "this memory is read-only")


def _argument(field: str, message: str) -> InvalidInput:
    return InvalidInput(Issue(field, message), where="argument")
