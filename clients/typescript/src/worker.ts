/** Runs an agent on the rollouts of a job, and reports its rewards. */

import { randomBytes, randomUUID } from "node:crypto";
import { once, setMaxListeners } from "node:events";
import { hostname } from "node:os";

import { InvalidConfigError, isOutage, RecordChangedError, ServerConnectionError } from "./errors.js";
import { HttpClient } from "./http.js";

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

/** Does a task, and returns its reward. After the signal, nobody waits for it. */
export type Agent = (resource: Resource, task: Task, signal: AbortSignal) => number | Promise<number>;

/** Where the store and the model of a job are, below the server's address. */
export interface JobAddress {
  url: string;
  token: string;
  /** Gives the token with which an attempt calls the model. */
  modelToken: (rolloutId: string, attemptId: string) => Promise<string>;
}

interface ClaimedRollout {
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
const SILENCE_MS = 30_000;
const RELEASE_MS = 2_000;
const MAX_RETRIES = 6;
const TOKEN_HELP =
  "The training server gave this token for the job: see what else listens there, then client.attach(job, agent)";

/** Claims rollouts and runs the agent on them, one after the other, until the signal. */
export class Worker {
  private readonly http: HttpClient;

  constructor(
    private readonly agent: Agent,
    private readonly job: JobAddress,
    private readonly workerId: number,
    private readonly signal: AbortSignal,
  ) {
    this.http = new HttpClient(`${job.url}/store`, job.token, SILENCE_MS, MAX_RETRIES, TOKEN_HELP);
  }

  async run(): Promise<void> {
    const worker_id = `${hostname()}-${process.pid}-${this.workerId}`;
    while (!this.signal.aborted) {
      // A claim whose answer was lost is asked for again by its key, and claims nothing more.
      const key = randomUUID();
      const body = { limit: 1, worker_id, wait_seconds: WAIT_SECONDS, key };
      const headers = { "Idempotency-Key": key };
      const claimed = await this.post<ClaimedRollout[]>("/queues/rollouts/dequeue", body, headers);
      for (const rollout of claimed) await this.runRollout(rollout);
    }
  }

  private post<T = unknown>(path: string, body: unknown, headers: Record<string, string>): Promise<T> {
    return this.http.request<T>("POST", `/v1/agl${path}`, { body, headers, signal: this.signal });
  }

  private async runRollout(claimed: ClaimedRollout): Promise<void> {
    const { rollout_id, attempt } = claimed;
    const ids = { rollout_id, attempt_id: attempt.attempt_id };
    const headers = { "AGL-Attempts": claimed.span_token ?? "" };
    const path = `/rollouts/${rollout_id}/attempts/${attempt.attempt_id}`;
    const sendHeartbeat = () => this.post(path, { last_heartbeat_time: Date.now() / 1000 }, headers).catch(() => {});
    const timer = setInterval(sendHeartbeat, HEARTBEAT_MS);
    const seconds = claimed.config.timeout_seconds;
    const timeoutMs = Math.min(Math.ceil((seconds ?? 0) * 1000), 2 ** 31 - 1);
    const limit = AbortSignal.any([this.signal, ...(seconds === null ? [] : [AbortSignal.timeout(timeoutMs)])]);
    const hasEnded = new AbortController();
    const aborted = once(limit, "abort", { signal: hasEnded.signal }).then(() => Promise.reject(limit.reason));
    aborted.catch(() => {}); // the race below may not be reached
    let spans: unknown[] = [];
    let finish: Record<string, unknown> = { ...ids, status: "succeeded" };
    let boundary = "resources";
    try {
      const resource = await this.resourceOf(claimed);
      boundary = "agent";
      const running = (async () => this.agent(resource, claimed.input, limit))();
      const reward = await Promise.race([aborted, running]);
      if (typeof reward !== "number" || !Number.isFinite(reward)) {
        throw new TypeError(`the agent returned ${String(reward)}; expected a finite number, the reward`);
      }
      boundary = "tracer"; // the gateway stores the calls of an attempt before it ends
      const gateway = new HttpClient(resource.modelApi.replace(/\/v1$/, ""), "", SILENCE_MS, 0, "");
      const calls = await gateway.request<{ lost_calls?: number } | null>("POST", "/end", { signal: this.signal });
      if (calls?.lost_calls) throw new Error(`the gateway could not store ${calls.lost_calls} calls`);
      spans = [rewardSpan(ids, reward)];
    } catch (error) {
      const hasBegun = boundary !== "resources" || !(error instanceof ServerConnectionError);
      if (this.signal.aborted || !hasBegun) {
        await this.release(rollout_id, headers);
        throw error;
      }
      const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
      finish = limit.aborted
        ? { ...ids, status: "timeout", error: { boundary: "timeout", type: name, message: `the agent ran longer than ${seconds} s` } }
        : { ...ids, status: "failed", error: { boundary, type: name, message, traceback: stack ?? null } };
    } finally {
      clearInterval(timer);
      hasEnded.abort();
    }
    try {
      await this.post("/turn", { spans, finish }, { ...headers, "Idempotency-Key": randomUUID() });
    } catch (error) {
      if (!(error instanceof RecordChangedError)) throw error; // else another runner has the rollout
    }
  }

  /** Put a rollout back into the queue, for another worker; if the store is away, it goes back later. */
  private async release(rolloutId: string, headers: Record<string, string>): Promise<void> {
    const http = new HttpClient(`${this.job.url}/store`, this.job.token, RELEASE_MS, 0, TOKEN_HELP);
    await http.request("POST", `/v1/agl/rollouts/${rolloutId}`, { body: { status: "requeuing" }, headers }).catch(() => {});
  }

  private async resourceOf({ rollout_id, attempt, ...claimed }: ClaimedRollout): Promise<Resource> {
    const path = `/v1/agl/resources/${claimed.resources_id ?? "latest"}`;
    const found = await this.http.request<{ resources: Record<string, ProxyLlm> }>("GET", path, { signal: this.signal });
    const llm = Object.values(found.resources).find((one) => one.resource_type.endsWith("llm"));
    if (!llm) throw new Error(`job has no model among its resources: ${Object.keys(found.resources)}`);
    const token = await this.job.modelToken(rollout_id, attempt.attempt_id);
    return {
      modelApi: `${this.job.url}/model/rollout/${rollout_id}/attempt/${attempt.attempt_id}/token/${token}/v1`,
      modelName: llm.model,
      taskId: String(claimed.input["task_id"] ?? rollout_id),
      workerId: this.workerId,
      metadata: { mode: claimed.mode, rolloutId: rollout_id, samplingParameters: llm.sampling_parameters ?? {} },
    };
  }
}

/** Workers that run an agent; those that end because the store gave no answer are started again. */
export class WorkerPool {
  private readonly leaving = new AbortController();
  private readonly running = new Map<number, Promise<void>>();
  private readonly failures: unknown[] = [];

  constructor(
    private readonly agent: Agent,
    private readonly size = 16,
  ) {
    if (!Number.isInteger(size) || size < 1) throw new InvalidConfigError(`workers: ${size}; expected 1 or more`);
    setMaxListeners(0, this.leaving.signal); // each worker is one
  }

  /** Start the workers that do not run; throws what else ended one. */
  ensureRunning(job: JobAddress): void {
    if (this.failures.length) throw this.failures[0];
    for (let id = 0; id < this.size; id++) {
      if (this.running.has(id)) continue;
      const ended = new Worker(this.agent, job, id, this.leaving.signal)
        .run()
        .catch((error: unknown) => {
          if (!isOutage(error)) this.failures.push(error);
        })
        .finally(() => this.running.delete(id));
      this.running.set(id, ended);
    }
  }

  async end(): Promise<void> {
    this.leaving.abort();
    await Promise.all(this.running.values());
  }
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
