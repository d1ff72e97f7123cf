// The programs of docs/ai-sdk.md, taken from its text: its route handler behind the AI SDK's own chat.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { Chat } from "@ai-sdk/react";
import { readUIMessageStream } from "ai";
import { build } from "esbuild";
import { createElement } from "react";
import { renderToString } from "react-dom/server";

import { installed, pinned, project } from "./guides.mjs";
import { client, conversation, modelCalls, newId } from "./support.mjs";

const PAGE = "ai-sdk.md";
const SESSION = 'export const userOf = async (request) => request.headers.get("x-session") ?? "ada";\n';

/** The guide's handler for an agent, and what the browser has of it. Sessions are a header here. */
async function app(t, agent = "template-agent") {
  process.env.AGENT = agent;
  const folder = project(t, PAGE, { "lib/user.js": SESSION });
  const load = (name) => import(pathToFileURL(join(folder, name)));
  const [route, browser] = [await load("app/api/chat/route.js"), await load("lib/chat.js")];
  return { folder, route, ...browser };
}

const post = (body, { session = "ada", signal } = {}) =>
  new Request("http://front.example/api/chat", { method: "POST", body: JSON.stringify(body), headers: { "x-session": session }, signal });
const user = (text, id = newId("message")) => ({ id, role: "user", parts: [{ type: "text", text }] });
const text = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
const tools = (message) => message.parts.filter((part) => part.type.startsWith("tool-"));

/** The parts of a UI message stream. */
async function parts(response) {
  assert.equal(response.status, 200);
  assert.equal(response.headers.get("x-vercel-ai-ui-message-stream"), "v1");
  const lines = (await response.text()).split("\n\n").filter(Boolean).map((line) => line.slice("data: ".length));
  assert.equal(lines.pop(), "[DONE]");
  return lines.map((line) => JSON.parse(line));
}

/** What a browser's page has: the guide's chat, whose requests reach the guide's handler. */
function page(t, { route, chatOptions, history, run }, thread = newId("thread")) {
  const real = globalThis.fetch;
  const sent = [];
  t.mock.method(globalThis, "fetch", (url, init = {}) => {
    if (!String(url).startsWith("/api/chat")) return real(url, init);
    if (init.body) sent.push(JSON.parse(init.body));
    return route[init.method ?? "GET"](new Request(new URL(url, "http://front.example"), init));
  });
  let chat;
  const onToolCall = ({ toolCall: { toolCallId, toolName: tool } }) => {
    if (run[tool]) run[tool]().then((output) => chat.addToolOutput({ tool, toolCallId, output }));
  };
  chat = new Chat({ ...chatOptions(thread), onToolCall });
  return { chat, thread, sent, reload: () => history(thread) };
}

/** Waits until the chat has answered and sends nothing more by itself. */
async function settled(chat) {
  for (let quiet = 0; quiet < 6; quiet = chat.status === "ready" ? quiet + 1 : 0) {
    assert.notEqual(chat.status, "error", chat.error?.message);
    await new Promise((soon) => setTimeout(soon, 50));
  }
}

test("the AI SDK's guide pins what these checks run with", () => {
  const told = pinned(PAGE);
  assert.deepEqual(Object.keys(told).sort(), ["@ai-sdk/react", "@mastra/ai-sdk", "@mastra/client-js", "ai", "zod"]);
  for (const [name, version] of Object.entries(told)) assert.equal(version, installed[name], name);
});

test("the handler streams text in pieces, as UI message parts", async (t) => {
  const { route } = await app(t);
  const seen = await parts(await route.POST(post({ thread: newId("thread"), message: user(`@say ${"word ".repeat(40)}`) })));
  const deltas = seen.filter((part) => part.type === "text-delta");
  assert.ok(deltas.length > 5, JSON.stringify(seen));
  assert.equal(deltas.map((part) => part.delta).join("").trim(), "word ".repeat(40).trim());
  assert.deepEqual([seen[0].type, seen.at(-1).type, seen.at(-1).finishReason], ["start", "finish", "stop"]);
});

test("the handler streams a tool's call and its result", async (t) => {
  const { route } = await app(t);
  const seen = await parts(await route.POST(post({ thread: newId("thread"), message: user('@call getWeather {"city":"Oslo"}\n@say It is 21C') })));
  const of = (type) => seen.filter((part) => part.type === type);
  const [call] = of("tool-input-available");
  const [result] = of("tool-output-available");
  assert.deepEqual([call.toolName, call.input, result.toolCallId, result.output], ["getWeather", { city: "Oslo" }, call.toolCallId, { city: "Oslo", tempC: 21 }]);
  assert.deepEqual([of("start-step").length, of("finish-step").length], [2, 2]);
});

test("the AI SDK's reader makes one message of the stream", async (t) => {
  const { route } = await app(t);
  const seen = await parts(await route.POST(post({ thread: newId("thread"), message: user('@call getWeather {"city":"Oslo"}\n@say It is 21C') })));
  const stream = ReadableStream.from(seen);
  let last;
  for await (const message of readUIMessageStream({ stream })) last = message;
  assert.deepEqual([tools(last).map((part) => part.state), text(last)], [["output-available"], "It is 21C"]);
});

test("a chat with a supervisor shows the call, the data that came up, and the answer; so after a reload", async (t) => {
  const { chat, reload } = page(t, await app(t, "limited-agent"));
  const prompt = '@call survey {"field":"north"}\n@say It is flat';
  await chat.sendMessage({ text: `@call agent-surveyor ${JSON.stringify({ prompt })}\n@say The north is flat` });
  await settled(chat);
  assert.equal(chat.error, undefined);
  for (const messages of [chat.messages, await reload()]) {
    assert.deepEqual(messages.map((message) => message.role), ["user", "assistant"]);
    const [call] = tools(messages[1]);
    assert.deepEqual([call.type, call.state, call.output.text, text(messages[1])], ["tool-agent-surveyor", "output-available", "It is flat", "The north is flat"]);
    assert.deepEqual(messages[1].parts.filter((part) => part.type === "data-progress").map((part) => part.data), [{ field: "north", done: 100 }]);
  }
});

test("a run that ends at a limit ends the chat's answer, without an error", async (t) => {
  const { chat, reload } = page(t, await app(t, "limited-agent"));
  const asks = (said) => `@call agent-surveyor ${JSON.stringify({ prompt: `@say ${said}` })}`;
  await chat.sendMessage({ text: `${asks("one")}\n${asks("two")}\n@say never` });
  await settled(chat);
  assert.deepEqual([chat.status, chat.error], ["ready", undefined]);
  for (const messages of [chat.messages, await reload()])
    assert.deepEqual(messages.flatMap(tools).map((part) => part.state), ["output-available", "output-error"]);
});

test("a chat sends only what is new, and after a reload each message is there once", async (t) => {
  const { chat, thread, sent, reload } = page(t, await app(t));
  assert.deepEqual(await reload(), []);
  await chat.sendMessage({ text: 'Oslo?\n@call getWeather {"city":"Oslo"}\n@say It is 21C' });
  await chat.sendMessage({ text: "@dump" });
  await settled(chat);
  assert.deepEqual(sent.map(({ message }) => message.role), ["user", "user"]);
  assert.equal(JSON.parse(text(chat.messages[3])).user.length, 2);
  const reloaded = await reload();
  assert.deepEqual(reloaded.map((message) => message.id), chat.messages.map((message) => message.id));
  for (const [n, message] of reloaded.entries()) {
    assert.deepEqual([message.role, text(message)], [chat.messages[n].role, text(chat.messages[n])]);
    assert.deepEqual(tools(message).map((part) => [part.type, part.state]), tools(chat.messages[n]).map((part) => [part.type, part.state]));
  }
  assert.deepEqual((await client.listMemoryThreads({ resourceId: "ada" })).threads.filter(({ id }) => id === thread).length, 1);
});

test("a tool of the browser runs there, and the answer goes on in one message", async (t) => {
  const { chat, reload } = page(t, await app(t));
  await chat.sendMessage({ text: "@call localTime {}\n@say It is late" });
  await settled(chat);
  assert.deepEqual(chat.messages.map((message) => message.role), ["user", "assistant"]);
  assert.deepEqual([tools(chat.messages[1]).map((part) => part.state), text(chat.messages[1])], [["output-available"], "It is late"]);
  const reloaded = await reload();
  assert.deepEqual(reloaded.flatMap(tools).map((part) => [part.state, Object.keys(part.output)]), [["output-available", ["now", "zone"]]]);
  assert.deepEqual(reloaded.map(text).filter(Boolean), ["@call localTime {}\n@say It is late", "It is late"]);
});

test("a call waits for the user's approval, and the answer goes on in one message", async (t) => {
  for (const [approved, state] of [[true, "output-available"], [false, "output-denied"]]) {
    const { chat, reload } = page(t, await app(t));
    await chat.sendMessage({ text: '@call deleteFile {"path":"/x"}\n@say decided' });
    const [waiting] = tools(chat.messages[1]);
    assert.deepEqual([waiting.state, waiting.input], ["approval-requested", { path: "/x" }]);
    await chat.addToolApprovalResponse({ id: waiting.approval.id, approved });
    await settled(chat);
    assert.deepEqual([chat.messages.length, tools(chat.messages[1]).map((part) => part.state), text(chat.messages[1])], [2, [state], "decided"]);
    assert.deepEqual((await reload()).flatMap(tools).map((part) => part.state), [state]);
  }
});

test("a call that waits is approved after a reload, by nobody else", async (t) => {
  const parts = await app(t);
  const { chat, thread, reload } = page(t, parts);
  await chat.sendMessage({ text: '@call deleteFile {"path":"/x"} && deleteFile {"path":"/y"}\n@say decided' });
  chat.messages = await reload();
  const waiting = tools(chat.messages[1]);
  const stolen = { ...chat.messages[1], parts: [{ ...waiting[0], state: "approval-responded", approval: { ...waiting[0].approval, approved: true } }] };
  assert.ok([403, 404].includes((await parts.route.POST(post({ thread, message: stolen }, { session: "eve" }))).status));
  for (const { approval: { id }, input } of waiting) await chat.addToolApprovalResponse({ id, approved: input.path === "/y" });
  await settled(chat);
  assert.equal(text(chat.messages[1]), "decided");
  assert.deepEqual((await reload()).flatMap(tools).map((part) => part.state), ["output-denied", "output-available"]);
});

test("an answer is made anew, and the old one is gone", async (t) => {
  const { chat, reload } = page(t, await app(t));
  await chat.sendMessage({ text: "@dump" });
  await chat.regenerate();
  await settled(chat);
  assert.equal(chat.messages.length, 2);
  assert.deepEqual(JSON.parse(text(chat.messages[1])).user, ["@dump"]);
  assert.deepEqual((await reload()).map((message) => message.id), chat.messages.map((message) => message.id));
});

test("a message that is posted twice is stored once and answered alike", async (t) => {
  const { route } = await app(t);
  const thread = newId("thread");
  const message = user(`${newId("twice")}\n@say Once`);
  const seen = [];
  for (let n = 0; n < 2; n++) seen.push(await parts(await route.POST(post({ thread, message, trigger: "submit-message" }))));
  const said = seen.map((all) => all.filter((part) => part.type === "text-delta").map((part) => part.delta).join(""));
  assert.deepEqual([said, seen[0][0].messageId], [["Once", "Once"], seen[1][0].messageId]);
  assert.deepEqual([(await conversation("template-agent", { thread }).messages()).length, (await modelCalls(text(message))).length], [2, 1]);
});

test("another user's thread is refused with its status", async (t) => {
  const { route } = await app(t);
  const thread = newId("thread");
  await parts(await route.POST(post({ thread, message: user("secret\n@say ok") })));
  const denied = await route.POST(post({ thread, message: user("@dump") }, { session: "eve" }));
  assert.deepEqual([denied.status, await denied.text()], [403, "Access denied: thread belongs to a different resource"]);
  const url = `http://front.example/api/chat?thread=${thread}`;
  assert.equal((await route.GET(new Request(url, { headers: { "x-session": "eve" } }))).status, 403);
  assert.equal((await route.POST(post({ thread, message: user("x", thread), trigger: "regenerate-message" }, { session: "eve" }))).status, 403);
  assert.equal((await (await route.GET(new Request(url))).json()).length, 2);
});

test("a run that fails is an error of the chat, and nothing is stored", async (t) => {
  const { chat, reload } = page(t, await app(t));
  await chat.sendMessage({ text: "@fail 400 prompt too long" });
  assert.deepEqual([chat.status, chat.error.message], ["error", "prompt too long"]);
  assert.deepEqual(await reload(), []);
});

test("a chat that is stopped can go on", async (t) => {
  const { chat, reload } = page(t, await app(t));
  const answered = chat.sendMessage({ text: `@pause 100\n@say ${"word ".repeat(40)}` });
  while (!chat.messages[1]?.parts.some((part) => part.type === "text")) await new Promise((soon) => setTimeout(soon, 5));
  await chat.stop();
  await answered;
  await chat.sendMessage({ text: "@say still here" });
  assert.equal(text((await reload()).at(-1)), "still here");
});

test("the component renders, and is bundled for browsers", async (t) => {
  const { folder } = await app(t);
  const options = { entryPoints: [join(folder, "components/chat.jsx")], bundle: true, format: "esm", jsx: "automatic", logLevel: "silent" };
  const { errors, warnings } = await build({ ...options, platform: "browser", write: false });
  assert.deepEqual([errors, warnings], [[], []]);
  await build({ ...options, platform: "node", packages: "external", outfile: join(folder, "chat.mjs") });
  const { Chat: Component } = await import(pathToFileURL(join(folder, "chat.mjs")));
  assert.match(renderToString(createElement(Component, { thread: "thread-1" })), /role="log".*aria-label="Message".*Send/);
});
