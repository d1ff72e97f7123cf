"""`tool` makes a tool of a typed function, `schema_tool` one of a JSON Schema."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic_core import to_jsonable_python

from threadkeep import schemas
from threadkeep.errors import ConfigurationError
from threadkeep.jsontext import Json
from threadkeep.turn.context import context_problems
from threadkeep.turn.tools import Tool, ToolContext, ToolInputInvalid

Function = Callable[..., Any]
Run = Callable[[dict[str, Json], ToolContext], Awaitable[Json]]


@overload
def tool(function: Function) -> Tool: ...
@overload
def tool(
    *,
    id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    require_approval: bool = False,
    request_context_schema: type[BaseModel] | None = None,
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    *,
    id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    require_approval: bool = False,
    request_context_schema: type[BaseModel] | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function; its parameters and docstring tell the model how to call it.

    Parameters need type hints; one annotated `ToolContext` receives the caller and is not shown to the
    model. The function may be async; a plain one runs in a thread. What it returns becomes JSON.
    A request context that breaks `request_context_schema` is told to the model and the function does not
    run (D-RC-5). Raises `ConfigurationError` for a parameter without a type hint.
    """

    def make(function: Function) -> Tool:
        public = name or function.__name__
        hints = get_type_hints(function, include_extras=True)
        returns = hints.pop("return", None)
        injected = next((p for p, hint in hints.items() if hint is ToolContext), None)
        arguments = _arguments(function, public, hints, injected)
        return Tool(
            name=public,
            id=id or public,
            description=description or inspect.getdoc(function) or "",
            parameters=arguments.model_json_schema(),
            run=_checked(_runner(function, arguments, injected), request_context_schema),
            output_schema=TypeAdapter(returns).json_schema() if returns is not None else None,
            require_approval=require_approval,
        )

    return make if function is None else make(function)


def schema_tool(
    name: str,
    parameters: dict[str, Json],
    run: Callable[[dict[str, Json], ToolContext], Any] | None = None,
    *,
    id: str | None = None,
    description: str = "",
    output_schema: dict[str, Json] | None = None,
    require_approval: bool = False,
) -> Tool:
    """Make a tool of a plain JSON Schema; `run` gets arguments that are valid, and the caller.

    `run` may be async; a plain one runs in a thread. Without `run` it is a client-side tool: the caller
    checks the arguments and brings the result. Raises `ConfigurationError` for a schema that cannot be used.
    """
    if reason := schemas.unusable(parameters):
        raise ConfigurationError(f"Tool {name}: {reason}")

    if run is None:
        return Tool(name, id or name, description, parameters, None, output_schema)

    async def checked(args: dict[str, Json], context: ToolContext) -> Json:
        if problems := schemas.problems(parameters, args):
            raise ToolInputInvalid(problems)
        return to_jsonable_python(await _called(run, args, context))

    return Tool(name, id or name, description, parameters, checked, output_schema, require_approval)


def _checked(run: Run, schema: type[BaseModel] | None) -> Run:
    async def checked(args: dict[str, Json], context: ToolContext) -> Json:
        problems = context_problems(context.request_context, schema) if schema else {}
        if problems:
            lines = "\n".join(f"- {field or 'root'}: {text}" for field, text in problems.items())
            return {"error": True, "message": f"Request context validation failed:\n{lines}"}
        return await run(args, context)

    return checked


def _arguments(function: Function, public: str, hints: dict[str, Any], injected: str | None) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == injected:
            continue
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(f"Tool {public}: parameter {parameter.name} needs a type hint")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(public, __config__=ConfigDict(extra="ignore", arbitrary_types_allowed=False), **fields)


def _runner(function: Function, arguments: type[BaseModel], injected: str | None) -> Any:
    async def run(args: dict[str, Json], context: ToolContext) -> Json:
        try:
            valid = arguments.model_validate(args)
        except ValidationError as error:
            raise ToolInputInvalid.of(error) from error
        given = {field: getattr(valid, field) for field in arguments.model_fields}
        if injected:
            given[injected] = context
        return to_jsonable_python(await _called(function, **given))

    return run


async def _called(function: Function, *args: Any, **named: Any) -> Any:
    """What the function returns; one that is not async runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **named)
    return await asyncio.to_thread(function, *args, **named)
