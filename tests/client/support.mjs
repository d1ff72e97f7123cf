// What the checks share: clients, fresh ids, and how a refusal is expected.
//
// The environment says where to: BASE_URL and API_KEY (as in .local/env), MODEL_URL of the scripted model, and
// ADA_TOKEN and EVE_TOKEN, tokens of two users whose owners are `user-ada` and `user-eve`.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import { MastraClient, MastraClientError } from "@mastra/client-js";

function setting(name) {
  if (!process.env[name]) throw new Error(`${name} is not set`);
  return process.env[name];
}

export const BASE_URL = setting("BASE_URL");

/** A client that carries a credential: by default the service key, which may act for any owner. */
export function clientWith({ credential = setting("API_KEY"), headers = {}, ...options } = {}) {
  return new MastraClient({ baseUrl: BASE_URL, headers: { Authorization: `Bearer ${credential}`, ...headers }, ...options });
}

export const client = clientWith();
export const ada = () => clientWith({ credential: setting("ADA_TOKEN") });
export const eve = () => clientWith({ credential: setting("EVE_TOKEN") });

export const newId = (kind) => `${kind}-${randomUUID().slice(0, 13)}`;

/** A conversation of its own with an agent: `say` runs a turn, `messages` lists what is stored, oldest first. */
export function conversation(agentId = "template-agent", { by = client, resource = newId("owner"), thread = newId("thread") } = {}) {
  const agent = by.getAgent(agentId);
  const memory = { thread, resource };
  const handle = by.getMemoryThread({ threadId: thread, agentId });
  return {
    agent, agentId, memory, thread, resource, handle,
    create: (more = {}) => by.createMemoryThread({ agentId, threadId: thread, resourceId: resource, ...more }),
    say: (messages, options = {}) => agent.generate(messages, { memory, ...options }),
    messages: async (options = {}) => (await handle.listMessages({ perPage: 100, orderBy: { field: "createdAt", direction: "ASC" }, ...options })).messages,
  };
}

/** The text of a stored message. */
export const textOf = (message) => message.content.parts.filter((part) => part.type === "text").map((part) => part.text).join("");

/** What the model was sent in a turn that ended with `@dump`: system, roles, user, tools, messages. */
export const prompt = (reply) => JSON.parse(reply.steps.at(-1).text);

/** Bodies of the model calls whose last message begins with `text`. */
export async function modelCalls(text) {
  const { requests } = await (await fetch(`${setting("MODEL_URL")}/_calls`)).json();
  return requests.filter((request) => String(request.messages.at(-1).content).startsWith(text));
}

/** The refusal that a call must meet, a MastraClientError of this status. Returns its JSON body. */
export async function refused(call, status) {
  const error = await call.then((reply) => assert.fail(`expected ${status}, got ${JSON.stringify(reply)}`), (error) => error);
  assert.ok(error instanceof MastraClientError, String(error));
  assert.equal(error.status, status, error.message);
  assert.equal(typeof error.body?.error, "string", error.message);
  return error.body;
}

/** The fields that a 400 names. */
export const fields = (body) => body.issues.map((issue) => issue.field);

/** A plain request with the service key, for what the client itself never sends. */
export async function raw(method, path, { body, headers = {} } = {}) {
  const answer = await fetch(BASE_URL + path, {
    method, headers: { Authorization: `Bearer ${setting("API_KEY")}`, "content-type": "application/json", ...headers }, body,
  });
  return { status: answer.status, body: await answer.json() };
}

export const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
