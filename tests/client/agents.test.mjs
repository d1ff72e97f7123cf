import assert from "node:assert/strict";
import { test } from "node:test";

import { client, clientWith, fields, raw, refused } from "./support.mjs";

const agent = client.getAgent("template-agent");
const AGENTS = ["template-agent", "thread-agent", "schema-agent", "supervisor", "limited-agent", "plain-agent"];
const KEYS = [
  "agents", "browserTools", "defaultGenerateOptionsLegacy", "defaultOptions", "defaultStreamOptionsLegacy", "description",
  "hasBrowser", "inputProcessors", "instructions", "modelId", "modelVersion", "name", "outputProcessors", "provider", "skills",
  "source", "supportsMemory", "tools", "workflows", "workspaceTools",
];

test("agents are listed by id", async () => {
  const agents = await client.listAgents();
  for (const id of AGENTS) assert.deepEqual([agents[id].id, agents[id].hasDraft], [id, false]);
});

test("an agent has every field that clients know", async () => {
  const { "template-agent": listed } = await client.listAgents();
  assert.deepEqual(Object.keys(listed).sort(), [...KEYS, "hasDraft", "id"].sort());
});

test("details tell name, instructions and model, without id", async () => {
  const details = await agent.details();
  assert.deepEqual(Object.keys(details).sort(), KEYS);
  assert.deepEqual(
    [details.name, details.instructions, details.provider, details.modelId, details.supportsMemory],
    ["Template Agent", "You are the template agent.", "scripted", "scripted", true],
  );
});

test("tools are keyed by the name that the model calls", async () => {
  const { tools } = await agent.details();
  assert.deepEqual(Object.keys(tools).sort(), ["deleteFile", "getWeather"]);
  assert.deepEqual([tools.getWeather.id, tools.getWeather.requireApproval], ["get-weather", false]);
  assert.deepEqual([tools.deleteFile.id, tools.deleteFile.requireApproval], ["delete-file", true]);
});

test("a partial list leaves out the schemas of tools", async () => {
  const { "template-agent": partial } = await client.listAgents(undefined, true);
  assert.ok(!partial.tools.getWeather.inputSchema && !partial.tools.getWeather.outputSchema);
});

test("a request context is taken on lists and details", async () => {
  assert.ok((await client.listAgents({ userId: "u1" }))["plain-agent"]);
  assert.equal((await agent.details({ userId: "u1", text: "zwölf" })).name, "Template Agent");
});

test("an unknown agent is a 404 that is asked for once", async () => {
  let asked = 0;
  const counting = clientWith({ fetch: (...request) => (asked++, fetch(...request)) });
  assert.deepEqual(await refused(counting.getAgent("nope").details(), 404), { error: "Agent with id nope not found" });
  assert.equal(asked, 1);
});

test("a tool is read by its id, its schemas are JSON text", async () => {
  const tool = await agent.getTool("get-weather");
  assert.deepEqual([tool.id, tool.description], ["get-weather", "Get the weather for a city"]);
  const { json: input } = JSON.parse(tool.inputSchema);
  assert.deepEqual([input.properties.city.type, input.required], ["string", ["city"]]);
  const { json: output } = JSON.parse(tool.outputSchema);
  assert.deepEqual(Object.keys(output.properties), ["city", "tempC"]);
});

test("an unknown tool is a 404", async () => {
  assert.equal((await refused(agent.getTool("nope"), 404)).error, "Tool not found");
  await refused(client.getTool("nope").details(), 404);
});

test("a tool is executed through its agent", async () => {
  assert.deepEqual(await agent.executeTool("get-weather", { data: { city: "Oslo" } }), { city: "Oslo", tempC: 21 });
});

test("arguments that break the schema are a result, not an error", async () => {
  const result = await agent.executeTool("get-weather", { data: { city: 5 } });
  assert.equal(result.error, true);
  assert.match(result.message, /Tool input validation failed for get-?Weather/i);
  assert.deepEqual(Object.keys(result.validationErrors.fields), ["city"]);
});

test("executing a tool without data is a 400 that names it", async () => {
  const { status, body } = await raw("POST", "/api/agents/template-agent/tools/get-weather/execute", { body: "{}" });
  assert.deepEqual([status, fields(body)], [400, ["data"]]);
});

test("tools of all agents are listed, read and executed by id", async () => {
  const tools = await client.listTools();
  assert.deepEqual(Object.keys(tools).sort(), ["delete-file", "get-weather"]);
  const tool = client.getTool("get-weather");
  assert.deepEqual(await tool.details(), tools["get-weather"]);
  assert.deepEqual(await tool.execute({ data: { city: "Rome" } }), { city: "Rome", tempC: 21 });
});

test("providers, speakers and listener answer with nothing", async () => {
  assert.deepEqual(await client.listAgentsModelProviders(), { providers: [] });
  assert.deepEqual(await agent.voice.getSpeakers(), []);
  assert.deepEqual(await agent.voice.getListener(), { enabled: false });
});

test("memory status tells which agents remember", async () => {
  assert.deepEqual(await client.getMemoryStatus("template-agent"), { result: true, memoryType: "local" });
  assert.equal((await client.getMemoryStatus("plain-agent")).result, false);
});

test("memory config shows the options, null without memory", async () => {
  const { config } = await client.getMemoryConfig({ agentId: "template-agent" });
  assert.deepEqual([config.lastMessages, config.semanticRecall, config.generateTitle], [10, false, false]);
  assert.deepEqual(await client.getMemoryConfig({ agentId: "plain-agent" }), { config: null });
});
