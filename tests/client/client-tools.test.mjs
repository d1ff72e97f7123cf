import assert from "node:assert/strict";
import { test } from "node:test";

import { createTool } from "@mastra/client-js";
import { z } from "zod";

import { client, conversation, prompt } from "./support.mjs";

/** A tool that the client runs; `calls` are the arguments that it was run with. */
function pickColor(answer = "teal") {
  const calls = [];
  const execute = async (args) => (calls.push(args), answer);
  const tool = createTool({ id: "pickColor", description: "picks", inputSchema: z.object({ hint: z.string() }), execute });
  return { tools: { pickColor: tool }, calls };
}

const invocations = (messages) =>
  messages.flatMap((message) => message.content.parts).filter((part) => part.type === "tool-invocation").map((part) => part.toolInvocation);

test("a client tool is run by the client and its result told to the model", async () => {
  const { tools, calls } = pickColor();
  const reply = await conversation().say('@call pickColor {"hint":"sea"}\n@say teal it is', { clientTools: tools });
  assert.deepEqual([reply.text, reply.finishReason, calls], ["teal it is", "stop", [{ hint: "sea" }]]);
});

test("a client tool's schema reaches the model", async () => {
  const { tools } = pickColor();
  assert.ok(prompt(await conversation().say("@dump", { clientTools: tools })).tools.includes("pickColor"));
});

test("a client tool's call is stored once, with arguments and result", async () => {
  const talk = conversation();
  await talk.say('@call pickColor {"hint":"sea"}\n@say teal it is', { clientTools: pickColor().tools });
  const found = invocations(await talk.messages());
  assert.deepEqual(found.map(({ toolName, state, args, result }) => ({ toolName, state, args, result })),
    [{ toolName: "pickColor", state: "result", args: { hint: "sea" }, result: "teal" }]);
});

test("the turn after a client tool shows the model call and result in order", async () => {
  const talk = conversation();
  await talk.say('@call pickColor {"hint":"sea"}\n@say teal it is', { clientTools: pickColor().tools });
  const { roles, user } = prompt(await talk.say("@dump"));
  assert.deepEqual(roles.filter((role) => role !== "system"), ["user", "assistant", "tool", "assistant", "user"]);
  assert.equal(user.length, 2);
});

test("a client tool may answer with any JSON", async () => {
  const answer = { deep: [1, 0.5, null, { é: "ü" }], yes: true };
  const talk = conversation();
  await talk.say('@call pickColor {"hint":"sea"}\n@say ok', { clientTools: pickColor(answer).tools });
  assert.deepEqual(invocations(await talk.messages())[0].result, answer);
});

test("a client tool that is called twice, one step after the other, is run twice", async () => {
  const { tools, calls } = pickColor();
  const talk = conversation();
  const first = await talk.say('@call pickColor {"hint":"sea"}\n@call pickColor {"hint":"sky"}\n@say done', { clientTools: tools });
  assert.deepEqual([first.text, calls], ["done", [{ hint: "sea" }, { hint: "sky" }]]);
  assert.equal(invocations(await talk.messages()).length, 2);
});

test("server and client tools of one step are both answered", async () => {
  const { tools } = pickColor();
  const talk = conversation();
  const reply = await talk.say('@call getWeather {"city":"Oslo"} && pickColor {"hint":"sea"}\n@say both', { clientTools: tools });
  assert.equal(reply.text, "both");
  assert.deepEqual(invocations(await talk.messages()).map(({ toolName, state }) => [toolName, state]), [["getWeather", "result"], ["pickColor", "result"]]);
});

test("without a thread the client sends the conversation along", async () => {
  const { tools, calls } = pickColor();
  const question = [{ role: "user", content: '@call pickColor {"hint":"sea"}\n@say teal it is' }];
  const reply = await client.getAgent("plain-agent").generate(question, { clientTools: tools });
  assert.deepEqual([reply.text, calls.length], ["teal it is", 1]);
});

test("client tools and a run id of the client's go together", async () => {
  const { tools, calls } = pickColor();
  const talk = conversation();
  const reply = await talk.say('@call pickColor {"hint":"sea"}\n@say teal it is', { clientTools: tools, runId: crypto.randomUUID() });
  assert.deepEqual([reply.text, calls.length], ["teal it is", 1]);
});
