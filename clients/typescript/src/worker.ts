/** Runs an agent on the rollouts of a job, and reports its rewards. */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import { Http, RecordChangedError } from "./http.js";

/** What an agent gets beside its task. */
export interface Resource {
  /** Address of the model for this rollout, for clients of OpenAI and Anthropic; any key does. */
  modelApi: string;
  modelName: string;
  taskId: string;
  workerId: number;
  metadata: { mode: string | null; rolloutId: string; samplingParameters: Record<string, unknown> };
}

/** A task as uploaded. */
export interface Task {
  question: unknown;
  ground_truth?: unknown;
  [field: string]: unknown;
}

/** Does a task, and returns its reward. */
export type Agent = (resource: Resource, task: Task, signal: AbortSignal) => number | Promise<number>;

/** Where the store of a job is, as the server says. */
export interface StoreAddress {
  url: string;
  token: string;
  /** Gives the token with which an attempt calls the model. */
  modelToken: (rolloutId: string, attemptId: string) => Promise<string>;
}

interface Claimed {
  rollout_id: string;
  input: Task;
  mode: string | null;
  resources_id: string | null;
  span_token: string | null;
  config: { timeout_seconds: number | null };
  attempt: { attempt_id: string };
}

interface ProxyLlm {
  resource_type: string;
  endpoint: string;
  model: string;
  sampling_parameters?: Record<string, unknown>;
}

const WAIT_SECONDS = 10;
const HEARTBEAT_MS = 15_000;
const RETRIES = 6;

/** Claims rollouts and runs the agent on them, one after the other, until the signal. */
export async function work(
  agent: Agent,
  store: StoreAddress,
  workerId: number,
  signal: AbortSignal,
): Promise<void> {
  const http = new Http(store.url, store.token, 60_000, RETRIES);
  const name = `${hostname()}-${process.pid}-${workerId}`;
  while (!signal.aborted) {
    const body = { limit: 1, worker_id: name, wait_seconds: WAIT_SECONDS };
    const path = "/v1/agl/queues/rollouts/dequeue";
    for (const claimed of await http.ask<Claimed[]>("POST", path, { body, signal })) {
      await runClaimed(agent, http, store, claimed, workerId, signal);
    }
  }
}

async function runClaimed(
  agent: Agent,
  http: Http,
  store: StoreAddress,
  claimed: Claimed,
  workerId: number,
  signal: AbortSignal,
): Promise<void> {
  const { rollout_id, attempt } = claimed;
  const ids = { rollout_id, attempt_id: attempt.attempt_id };
  const headers = { "AGL-Attempts": claimed.span_token ?? "" };
  const ownPath = `/v1/agl/rollouts/${rollout_id}/attempts/${attempt.attempt_id}`;
  const beat = () =>
    http
      .request("POST", ownPath, { body: { last_heartbeat_time: Date.now() / 1000 }, headers, signal })
      .catch(() => undefined);
  const timer = setInterval(beat, HEARTBEAT_MS);
  const seconds = claimed.config.timeout_seconds;
  const limit = seconds === null ? signal : AbortSignal.any([signal, AbortSignal.timeout(seconds * 1000)]);
  let spans: unknown[] = [];
  let boundary = "resources";
  let finish: Record<string, unknown> = { ...ids, status: "succeeded" };
  try {
    const resource = await resourceOf(http, store, claimed, workerId, signal);
    boundary = "agent";
    const reward = await agent(resource, claimed.input, limit);
    if (typeof reward !== "number" || !Number.isFinite(reward)) {
      throw new TypeError(`the agent returned ${String(reward)}; expected a finite number, the reward`);
    }
    boundary = "tracer";
    await endCalls(resource.modelApi, signal);
    spans = [rewardSpan(ids, reward)];
  } catch (error) {
    if (signal.aborted) return; // the job is over, or left: another runner gets it
    const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
    const isLate = limit.aborted;
    const traceback = stack ?? null;
    finish = { ...ids, status: isLate ? "timeout" : "failed", error: { boundary: isLate ? "timeout" : boundary, type: name, message, traceback } };
  } finally {
    clearInterval(timer);
  }
  const key = randomBytes(16).toString("hex");
  const told = { ...headers, "Idempotency-Key": key };
  try {
    await http.request("POST", "/v1/agl/turn", { body: { spans, finish }, headers: told, signal });
  } catch (error) {
    if (!(error instanceof RecordChangedError)) throw error; // else another runner has the rollout
  }
}

async function resourceOf(
  http: Http,
  store: StoreAddress,
  claimed: Claimed,
  workerId: number,
  signal: AbortSignal,
): Promise<Resource> {
  const path = `/v1/agl/resources/${claimed.resources_id ?? "latest"}`;
  const found = await http.ask<{ resources: Record<string, ProxyLlm> }>("GET", path, { signal });
  const llm = Object.values(found.resources).find((one) => one.resource_type.endsWith("llm"));
  if (!llm) throw new Error(`job has no model among its resources: ${Object.keys(found.resources)}`);
  const { rollout_id, attempt } = claimed;
  const token = await store.modelToken(rollout_id, attempt.attempt_id);
  const base = llm.endpoint.replace(/\/v1\/?$/, "");
  return {
    modelApi: `${base}/rollout/${rollout_id}/attempt/${attempt.attempt_id}/token/${token}/v1`,
    modelName: llm.model,
    taskId: String(claimed.input["task_id"] ?? rollout_id),
    workerId,
    metadata: {
      mode: claimed.mode,
      rolloutId: rollout_id,
      samplingParameters: llm.sampling_parameters ?? {},
    },
  };
}

/** Have the gateway store the calls of an attempt before it ends. */
async function endCalls(modelApi: string, signal: AbortSignal): Promise<void> {
  const answer = await fetch(modelApi.replace(/\/v1$/, "/end"), { method: "POST", signal });
  const said = answer.ok ? ((await answer.json()) as { lost_calls?: number } | null) : null;
  if (!answer.ok) throw new Error(`the gateway did not store the calls: HTTP ${answer.status}`);
  if (said?.lost_calls) throw new Error(`the gateway could not store ${said.lost_calls} calls`);
}

/** A reward as agl's own runner records it; times are seconds. */
export function rewardSpan(ids: { rollout_id: string; attempt_id: string }, reward: number): unknown {
  const trace_id = randomBytes(16).toString("hex");
  const span_id = randomBytes(8).toString("hex");
  const now = Date.now() / 1000;
  return {
    ...ids,
    sequence_id: 0,
    trace_id,
    span_id,
    parent_id: null,
    name: "agentlightning.annotation",
    status: { status_code: "OK", description: null },
    attributes: {
      "agentlightning.reward.0.name": "primary",
      "agentlightning.reward.0.value": reward,
    },
    events: [],
    links: [],
    start_time: now,
    end_time: now,
    context: { trace_id, span_id, is_remote: false, trace_state: {} },
    parent: null,
    resource: { attributes: {}, schema_url: "" },
  };
}
