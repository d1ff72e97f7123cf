// A proxy on loopback that loses answers: the server has done its work, the client sees a broken connection.

import { once } from "node:events";
import { createServer } from "node:http";

import { BASE_URL, clientWith } from "./support.mjs";

const PASSED_ON = ["authorization", "content-type", "idempotency-key"];

/**
 * A client behind the proxy, for one check. `drop(n)`: the next n answers are lost once the server has sent them.
 * `cut(millis)`: the next request is cut off after that time, while the server works on. `seen`: what was sent, in order.
 */
export async function flaky(test, options = {}) {
  let lost = 0;
  let patience = 0;
  const seen = [];

  async function pass(request, response) {
    const body = Buffer.concat(await request.toArray());
    seen.push(`${request.method} ${request.url.split("?")[0]}`);
    const headers = Object.fromEntries(PASSED_ON.filter((name) => name in request.headers).map((name) => [name, request.headers[name]]));
    if (patience) setTimeout(() => request.socket.destroy(), patience);
    patience = 0;
    const answer = await fetch(BASE_URL + request.url, { method: request.method, headers, body: body.length ? body : undefined });
    const content = Buffer.from(await answer.arrayBuffer());
    if (lost > 0) {
      lost--;
      request.socket.destroy();
    } else {
      response.writeHead(answer.status, { "content-type": "application/json" }).end(content);
    }
  }

  const server = createServer(pass).listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => (server.closeAllConnections(), server.close()));
  return {
    client: clientWith({ ...options, baseUrl: `http://127.0.0.1:${server.address().port}` }),
    drop: (count) => (lost = count),
    cut: (millis) => (patience = millis),
    seen,
  };
}
