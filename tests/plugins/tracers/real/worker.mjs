// An agent that needs no Python: it claims a rollout from the store's server, calls the model at
// the address of its attempt, writes the reward as a span, and ends the attempt.
// Environment: STORE_URL, as `agl store` prints it. The resource `llm` says where the gateway is and which model is served.
import { randomBytes } from "node:crypto";
import OpenAI from "openai";

// `fetch` refuses addresses with a token in them.
const { origin, password } = new URL(process.env.STORE_URL);
const headers = {
  authorization: `Bearer ${decodeURIComponent(password)}`,
  "content-type": "application/json",
};

async function ask(path, body) {
  const options = body && { method: "POST", body: JSON.stringify(body) };
  const answer = await fetch(`${origin}/v1/agl/${path}`, { headers, ...options });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

const claim = { worker_id: "node", wait_seconds: 30 };
const [rollout] = await ask("queues/rollouts/dequeue", claim);
const ids = { rollout_id: rollout.rollout_id, attempt_id: rollout.attempt.attempt_id };
const { resources } = await ask(`resources/${rollout.resources_id}`);
const { llm } = resources;
const gateway = llm.endpoint.replace(/\/v1$/, "");
const place = `rollout/${ids.rollout_id}/attempt/${ids.attempt_id}`;
const attempt = `${gateway}/${place}`;
const key = llm.api_key ?? "none";

const client = new OpenAI({ baseURL: `${attempt}/v1`, apiKey: key });
const messages = [{ role: "user", content: rollout.input }];
const answer = await client.chat.completions.create({ model: llm.model, messages });
const reward = answer.choices[0].message.content.includes("sunny") ? 1.0 : 0.0;

// Every call of the attempt is stored when this has answered.
const ended = await fetch(`${attempt}/end`, {
  method: "POST",
  headers: { authorization: `Bearer ${key}` },
});
if (!ended.ok) throw new Error(`end: ${ended.status} ${await ended.text()}`);
const now = Date.now() / 1000;
await ask("spans", {
  ...ids,
  name: "agentlightning.annotation",
  attributes: { "agentlightning.reward.0.value": reward },
  sequence_id: 0, // the store gives the next number
  trace_id: randomBytes(16).toString("hex"),
  span_id: randomBytes(8).toString("hex"),
  start_time: now,
  end_time: now,
  status: { status_code: "OK", description: null },
  parent_id: null,
  events: [],
  links: [],
  context: null,
  parent: null,
  resource: { attributes: {}, schema_url: "" },
});
await ask(`rollouts/${ids.rollout_id}/attempts/${ids.attempt_id}`, { status: "succeeded" });
console.log(reward);
