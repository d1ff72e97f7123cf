// Serves what readers of the guides have built: the page of docs/front-end.md at /, the chat of docs/ai-sdk.md at
// /chat/<thread>, with its handler at /api/chat. Prints its address; the environment is that of the checks.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { pathToFileURL } from "node:url";

import { build } from "esbuild";

import { project } from "./guides.mjs";

const MAIN = `
import { createRoot } from "react-dom/client";
import { Chat } from "./components/chat.jsx";
createRoot(document.querySelector("main")).render(<Chat thread={location.pathname.split("/").pop()} />);
`;
const SHELL = '<!doctype html><html lang="en"><title>Chat</title><main></main><script type="module" src="/ai.js"></script></html>';
const TYPES = { html: "text/html", js: "text/javascript" };

const ended = { after: (clean) => process.on("exit", clean) };
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit());

/** The text of the bundle of one script. */
async function bundled(folder, script) {
  const options = { bundle: true, format: "esm", jsx: "automatic", write: false, logLevel: "warning" };
  return (await build({ ...options, entryPoints: [join(folder, script)] })).outputFiles[0].text;
}

const page = project(ended, "front-end.md");
const chat = project(ended, "ai-sdk.md", { "main.jsx": MAIN });
const route = await import(pathToFileURL(join(chat, "app/api/chat/route.js")));
const served = {
  "/": readFileSync(join(page, "index.html"), "utf8"),
  "/built/page.js": await bundled(page, "page.js"),
  "/ai.js": await bundled(chat, "main.jsx"),
};

/** Lets the guide's handler answer, as a web server would. */
async function handled(request, response, url) {
  const hungUp = new AbortController();
  response.on("close", () => hungUp.abort());
  const { method, headers } = request;
  const body = method === "GET" ? undefined : Readable.toWeb(request);
  const answer = await route[method](new Request(url, { method, headers, body, duplex: "half", signal: hungUp.signal }));
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  await pipeline(Readable.fromWeb(answer.body), response).catch(() => {}); // the browser has gone
}

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://127.0.0.1");
  if (url.pathname === "/api/chat") return handled(request, response, url);
  const found = url.pathname.startsWith("/chat/") ? SHELL : served[url.pathname];
  response.writeHead(found ? 200 : 404, { "content-type": TYPES[url.pathname.split(".")[1] ?? "html"] ?? "text/plain" });
  response.end(found);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
