// The programs of docs/front-end.md, taken from its text.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";

import { flaky } from "./flaky.mjs";
import { files, installed, pinned, project } from "./guides.mjs";
import { BASE_URL, conversation, modelCalls, newId } from "./support.mjs";

const PAGE = "front-end.md";
const run = promisify(execFile);

/** The page's `chat.js`, for a user. */
async function connected(t, token = process.env.ADA_TOKEN, { baseUrl = BASE_URL, agentId = "template-agent" } = {}) {
  const { connect, explain } = await import(pathToFileURL(join(project(t, PAGE), "chat.js")));
  return { chat: await connect({ baseUrl, agentId, token: async () => token }), explain };
}

/** The error that a promise must reject with. */
const failure = (promise) => promise.then((value) => assert.fail(`it gave ${JSON.stringify(value)}`), (error) => error);

/** What `found` gives once it gives something. */
async function until(found) {
  for (;;) {
    const value = await found();
    if (value) return value;
    await new Promise((soon) => setTimeout(soon, 100));
  }
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((listening) => server.once("listening", listening));
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}

test("the guide pins what these checks run with", () => {
  const told = pinned(PAGE);
  assert.deepEqual(Object.keys(told).sort(), ["@mastra/client-js", "esbuild", "zod"]);
  for (const [name, version] of Object.entries(told)) assert.equal(version, installed[name], name);
});

test("the first steps run as they stand", async (t) => {
  for (const [TOKEN, AGENT] of [[process.env.API_KEY, "template-agent"], [process.env.EVE_TOKEN, "thread-agent"]]) {
    const env = { ...process.env, BASE_URL, TOKEN, AGENT };
    const { stdout } = await run(process.execPath, ["first-steps.mjs"], { cwd: project(t, PAGE), env });
    assert.match(stdout, /^You said: My dog is called Comet\.\nYou said: What is my dog called\?\n\d+ threads; this one has 4 messages\n$/);
  }
});

test("the page's chat knows whose token it has", async (t) => {
  assert.equal((await connected(t)).chat.resourceId, "user-ada");
  assert.equal((await connected(t, process.env.API_KEY)).chat.resourceId, "developer");
});

test("the page's chat shows text as it appears, and each message once after a reload", async (t) => {
  const { chat } = await connected(t);
  const { id } = await chat.create("Boats");
  const pieces = [];
  await chat.say(id, `Hello\n@say ${"word ".repeat(40)}`, { onText: (piece) => pieces.push(piece) });
  assert.ok(pieces.length > 5, pieces.join("|"));
  const { chat: reloaded } = await connected(t);
  const history = await reloaded.history(id);
  assert.deepEqual(history.map(({ role, text }) => [role, text.trim()]), [["user", `Hello\n@say ${"word ".repeat(40)}`.trim()], ["assistant", pieces.join("").trim()]]);
  assert.deepEqual((await reloaded.threads()).filter((thread) => thread.id === id).map((thread) => thread.title), ["Boats"]);
  await reloaded.remove(id);
  assert.equal((await failure(reloaded.history(id))).status, 404);
});

test("the page's tool runs in the browser and the agent goes on", async (t) => {
  const { chat } = await connected(t);
  const { id } = await chat.create("Time");
  const tools = [];
  let text = "";
  await chat.say(id, "@call localTime {}\n@say It is late", { onText: (piece) => (text += piece), onTool: (name) => tools.push(name) });
  assert.deepEqual([tools, text], [["localTime"], "It is late"]);
  const stored = await conversation("template-agent", { thread: id }).messages();
  const { toolInvocation: call } = stored.flatMap((message) => message.content.parts).find((part) => part.type === "tool-invocation");
  assert.deepEqual([call.state, Object.keys(call.result)], ["result", ["now", "zone"]]);
});

test("the page asks before a tool runs that needs approval, once for each call", async (t) => {
  const { chat } = await connected(t);
  const { id } = await chat.create("Files");
  const asked = [];
  let text = "";
  const approve = async (name, { path }) => (asked.push([name, path]), path === "/yes");
  await chat.say(id, '@call deleteFile {"path":"/yes"} && deleteFile {"path":"/no"}\n@say decided', { approve, onText: (piece) => (text += piece) });
  assert.deepEqual([asked, text], [[["deleteFile", "/yes"], ["deleteFile", "/no"]], "decided"]);
  const stored = await conversation("template-agent", { thread: id }).messages();
  const calls = stored.flatMap((message) => message.content.parts).filter((part) => part.type === "tool-invocation");
  assert.deepEqual(calls.map(({ toolInvocation: call }) => call.state), ["result", "output-denied"]);
});

test("the page's memory is shown and edited, and an old version is refused", async (t) => {
  const { chat, explain } = await connected(t, process.env.EVE_TOKEN, { agentId: "thread-agent" });
  const { id } = await chat.create("Memory");
  const empty = await chat.readMemory(id);
  assert.equal(empty.text, "");
  await chat.say(id, '@call updateWorkingMemory {"memory": "# User Profile\\n- Name: Eve"}\n@say Noted');
  const read = await chat.readMemory(id);
  assert.match(read.text, /Name: Eve/);
  const stale = await failure(chat.writeMemory(id, "- Name: Nobody", empty.version));
  assert.deepEqual([stale.status, explain(stale)], [412, "It was changed meanwhile. Read it again."]);
  await chat.writeMemory(id, "# User Profile\n- Name: Eva", read.version);
  assert.match((await chat.readMemory(id)).text, /Name: Eva/);
});

test("the page explains what goes wrong", async (t) => {
  const { chat, explain } = await connected(t);
  const { id } = await chat.create("Secret");
  const { chat: other } = await connected(t, process.env.EVE_TOKEN);
  const said = async (promise) => explain(await failure(promise));
  assert.equal(await said(other.say(id, "@dump")), "This conversation belongs to somebody else.");
  assert.equal(await said(other.history(id)), "This conversation belongs to somebody else.");
  assert.equal(await said(connected(t, "forged")), "Please sign in again.");
  assert.equal(await said(chat.history(newId("thread"))), "This conversation is gone.");
  assert.equal(await said(chat.say(id, "x".repeat(5_000_000))), "That is too long.");
  assert.match(await said(chat.say(id, "@fail 400 prompt too long")), /prompt too long/);
  assert.equal(await said(chat.say(id, " ")), "Invalid request body");
  assert.deepEqual(await chat.history(id), []);
});

test("the page's chat stops, and what was said is in the history", async (t) => {
  const { chat, explain } = await connected(t);
  const { id } = await chat.create("Stop");
  const stopper = new AbortController();
  const said = `@pause 100\n@say ${"word ".repeat(40)}`;
  const onText = () => stopper.abort();
  assert.equal(explain(await failure(chat.say(id, said, { signal: stopper.signal, onText }))), "Stopped.");
  const part = await until(async () => (await chat.history(id))[1]?.text);
  assert.ok(said.includes(part) && part.length < 100, part);
  await chat.say(id, "@say still here");
  assert.equal((await chat.history(id)).at(-1).text, "still here");
});

test("a turn that is sent again under its run id is stored once", async (t) => {
  const proxy = await flaky(t);
  const { chat } = await connected(t, process.env.ADA_TOKEN, { baseUrl: proxy.client.options.baseUrl });
  const { id } = await chat.create("Twice");
  const question = `${newId("twice")}\n@say Once`;
  const runId = randomUUID();
  proxy.drop(1);
  for (const onText of [undefined, (piece) => assert.ok("Once".includes(piece))]) await chat.say(id, question, { runId, onText });
  assert.deepEqual([(await chat.history(id)).length, (await modelCalls(question)).length], [2, 1]);
});

test("npm start serves the page and its script", async (t) => {
  const folder = project(t, PAGE);
  const port = await freePort();
  const [command, ...words] = JSON.parse(files(PAGE)["package.json"]).scripts.start.replace("5173", port).split(" ");
  const server = spawn(join(folder, "node_modules/.bin", command), words, { cwd: folder, stdio: ["pipe", "ignore", "pipe"] });
  t.after(() => server.kill());
  const log = [];
  server.stderr.on("data", (text) => log.push(String(text)));
  const get = async (path) => (await fetch(`http://127.0.0.1:${port}/${path}`)).text();
  while (!log.join("").includes(`${port}`)) await new Promise((soon) => setTimeout(soon, 50));
  assert.equal(await get(""), files(PAGE)["index.html"]);
  assert.match(await get("built/page.js"), /Conversations|sign-in/);
});
