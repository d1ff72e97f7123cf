"""A small OpenAI-compatible server whose answers the test writes into the prompt.

Directives stand in the **last user message**, one per line (other lines are prose and ignored)::

    @say text             answer with the text; a JSON string literal ("two\\nlines") is decoded first
    @call tool {json}     answer with a call of the tool; no JSON means {}; text that is no JSON object
                          is sent as it stands, so that broken arguments can be tested
    @call a {} && b {}    several calls in one answer; a last ` && @say text` adds text to it
    @dump                 answer with the JSON of what was sent: model, system, roles, user, tools,
                          tool_choice, messages
    @fail status text     answer with that HTTP status and an error body
    @wait ms              wait before the answer that follows (itself no answer)
    @hold name            hold back the answer that follows until the name is released, at most 60 s
    @pause ms             streams: wait before each piece of the answer that follows but the first
    @stall name           streams: send the first piece of the answer that follows and hold the rest until the
                          name is released, at most 60 s
    ... && @fail status text   at the end of @say and @call: the stream breaks off with this error after the
                          text and calls; without a stream the whole answer fails

A stream sends pieces of 8 characters, of text and of arguments.

Each model call takes the next directive: the one whose position is the number of assistant messages
after that user message. So a failed call does not move on, and a repeat of it fails again. When the
directives have run out, the answer is `Done.`; a message without any is answered `You said: <text>`.
A transcript (a message that begins with `User: ` or `Assistant: `, as title requests do) is data: it
is answered `You said: ...`, unless the system messages hold directives.

Like the real thing, the server refuses with 400 a prompt in which calls and results do not pair up.

Besides `/v1/chat/completions` (plain and `stream: true`) and `/v1/models` there are `GET /_calls`
(`{"count", "requests", "hangups"}`: the newest 1,000 bodies, and how many clients hung up before the end of
their answer), `POST /_reset`, `GET /_held` (`{"held": [name]}`) and `POST /_release/<name>`. A released
name stays released until the reset, so it does not matter which comes first.

In the test's own process::

    with ScriptedModel() as model:
        ...  # model.url, model.calls, model.requests, model.hangups, model.reset(), model.held, model.release(name)

In another one: `python -m tests.scripted --port 0` prints the URL; `RemoteScriptedModel(url)` has the
same face over HTTP.
"""

from tests.scripted.remote import RemoteScriptedModel
from tests.scripted.server import ScriptedModel

__all__ = ["RemoteScriptedModel", "ScriptedModel"]
