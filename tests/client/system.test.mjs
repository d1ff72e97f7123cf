// needs: GET /api/system/packages

import assert from "node:assert/strict";
import { test } from "node:test";

import { BASE_URL, client } from "./support.mjs";

test("system packages tell what Studio may show", async () => {
  const { packages, isDev, cmsEnabled, observabilityEnabled } = await client.getSystemPackages();
  assert.ok(Array.isArray(packages));
  assert.deepEqual([isDev, cmsEnabled, typeof observabilityEnabled], [false, false, "boolean"]);
});

test("capabilities are told without a credential", async () => {
  const answer = await fetch(`${BASE_URL}/api/auth/capabilities`);
  assert.equal(answer.status, 200);
  assert.equal(typeof (await answer.json()).enabled, "boolean");
});
