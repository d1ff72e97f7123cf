"""`WorkingMemory`: what a working memory holds, as a system text (PR-10, WM-22 to WM-27)."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

from threadkeep import jsontext
from threadkeep.errors import ConfigurationError
from threadkeep.memory.working_memory import schema as schema_of
from threadkeep.memory.working_memory.form import DEFAULT_TEMPLATE, Form, form_of
from threadkeep.memory.working_memory.options import WorkingMemoryOptions
from threadkeep.memory.working_memory.prompt import system_text
from threadkeep.storage.port import MemoryScope, Storage
from threadkeep.storage.port import WorkingMemory as Stored
from threadkeep.turn.context import RequestContext
from threadkeep.turn.message_list import MessageList, SystemText
from threadkeep.turn.processors.base import Processor, ProcessorCall

Template = Mapping[str, str]
Given = Template | Form | None


class HasTemplate(Protocol):
    """What may provide a template, for example a `Memory`."""

    def get_working_memory_template(self) -> Given | Awaitable[Given]: ...


TemplateProvider = HasTemplate | Callable[[RequestContext], Given | Awaitable[Given]]


class WorkingMemory(Processor):
    """The working memory in the prompt, at a place of its own among the processors, or without a Memory.

    In `input_processors` it takes the place of the Memory's own text (PR-5), and `scope` says whose memory
    the run uses; the tool, if the Memory offers one, writes the same. Without a Memory it only reads: there is no
    tool, and no thread is created. `template` is `{"format": "markdown" | "json", "content": ...}`, JSON with a
    JSON Schema as text; `template_provider`, an object or a function of the request context, async or not, comes
    before it, the default template after it. With `read_only` the text says nothing of updates, and the run has
    no tool for them. `storage` None means the Memory's, or the deployment's. A run without thread and resource
    passes through.

    Raises `ConfigurationError` for a template of another form, a schema that cannot be used, or one with
    `use_vnext`.
    """

    id = "working-memory"
    name = "WorkingMemory"
    default_working_memory_template: ClassVar[str] = DEFAULT_TEMPLATE

    def __init__(
        self,
        *,
        storage: Storage | None = None,
        template: Template | None = None,
        scope: MemoryScope = "resource",
        use_vnext: bool = False,
        read_only: bool = False,
        template_provider: TemplateProvider | None = None,
    ):
        if scope not in ("resource", "thread"):
            raise ConfigurationError(f"WorkingMemory: scope must be resource or thread, received {scope!r}")
        self.storage = storage
        self.scope: MemoryScope = scope
        self.use_vnext = use_vnext
        self.read_only = read_only
        self.template_provider = template_provider
        self._form = self._checked(template)

    @classmethod
    def of_memory(cls, options: WorkingMemoryOptions, *, read_only: bool) -> Self:
        """The one that a Memory adds by itself. Memory that the agent does not manage reads as read-only (M-DISC-7)."""
        made = cls(scope=options.scope, use_vnext=options.vnext, read_only=read_only or not options.agent_managed)
        made._form = form_of(options)
        return made

    async def process_input(self, messages: MessageList, call: ProcessorCall) -> MessageList | None:
        memory = call.facts.memory
        if memory is None:
            return None
        call.state["form"] = await self._provided(call.request_context) or self._form
        return messages.plus_system(self._text(memory.current, call))

    def process_input_step(self, messages: MessageList, call: ProcessorCall) -> MessageList | None:
        """After a write the next step sees what was written."""
        memory = call.facts.memory
        if memory is None or "form" not in call.state or memory.current.version == call.state["version"]:
            return None
        return messages.with_system(self._text(memory.current, call))

    def _text(self, current: Stored, call: ProcessorCall) -> SystemText:
        call.state["version"] = current.version
        text = system_text(call.state["form"], current.text, read_only=self.read_only, vnext=self.use_vnext)
        return SystemText(text, "memory", self.id)

    async def _provided(self, context: RequestContext) -> Form | None:
        provider: Any = self.template_provider
        if provider is None:
            return None
        given = getattr(provider, "get_working_memory_template", None)
        found = given() if given is not None else provider(context)
        found = await found if inspect.isawaitable(found) else found
        return None if found is None else self._checked(found)

    def _checked(self, template: Any) -> Form:
        """The form that a template describes; None means the default one."""
        if template is None:
            return Form("markdown", DEFAULT_TEMPLATE)
        match {"format": template.format, "content": template.content} if isinstance(template, Form) else template:
            case {"format": "markdown", "content": str(content)}:
                return Form("markdown", content.strip() or DEFAULT_TEMPLATE)
            case {"format": "json", "content": str(content)}:
                if self.use_vnext:
                    raise ConfigurationError("WorkingMemory: use_vnext works with a Markdown template only")
                return _json_form(content)
            case _:
                raise ConfigurationError(
                    'WorkingMemory: template must be {"format": "markdown" | "json", "content": str}'
                )


def _json_form(content: str) -> Form:
    try:
        schema = schema_of.shown(schema_of.usable(jsontext.loads(content)))
    except ValueError as error:
        raise ConfigurationError(f"WorkingMemory: the template is no usable JSON Schema: {error}") from error
    return Form("json", jsontext.dumps(schema), schema)
