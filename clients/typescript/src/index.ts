/** Client of a training server of agl; see README.md. */

import { createHash, randomUUID } from "node:crypto";
import { createWriteStream } from "node:fs";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";

import { InvalidConfigError, ServerConnectionError, TrainingError } from "./errors.js";
import { Http } from "./http.js";
import { type Agent, type StoreAddress, type Task, work } from "./worker.js";

export { type Message, type PromptTemplate, type RecordedReward, type RecordedRollout, Recorder } from "./record.js";
export { DataUploadError, InvalidConfigError, ServerConnectionError, TrainingError } from "./errors.js";
export { type Agent, type Resource, rewardSpan, type StoreAddress, type Task, work } from "./worker.js";

const PIECE_BYTES = 2 ** 22;

export interface ClientOptions {
  /** Token of the user, if it does not stand in the address; else `AGENT_LIGHTNING_API_KEY`. */
  apiKey?: string;
  /** How long a request may take, and the server be away while a job runs. */
  timeoutMs?: number;
  /** How often a request that gets no answer is repeated. */
  maxRetries?: number;
}

export interface FollowOptions {
  /** Rollouts that run at once; 16 by default. */
  workers?: number;
  /** Told whenever the server says something new. */
  onProgress?: (job: Job) => void;
  /** Leaves the job, which stays at the server; see `attach`. */
  signal?: AbortSignal;
}

export interface TrainOptions extends FollowOptions {
  /** Passes over the training tasks; 1 by default. */
  epochs?: number;
  /** Tasks per update; 32 by default. */
  batchSize?: number;
  /** What `uploadData` returned; by default the last that this client uploaded. */
  dataId?: string;
  /** Updates between evaluations on the test tasks; 50 by default. */
  evalInterval?: number;
}

export type JobState = "queued" | "running" | "paused" | "stopped" | "finished" | "failed" | "damaged";

/** A job, as the server tells of it. */
export interface Job {
  id: string;
  kind: "train" | "evaluate";
  state: JobState;
  error: string;
  step: number;
  steps: number;
  train_rewards: number[];
  test_rewards: number[];
  /** Name -> files. */
  checkpoints: Record<string, string[]>;
  best: string;
  seconds: number;
}

export interface TrainingResult {
  finalReward: number;
  trainRewards: number[];
  testRewards: number[];
  /** For `downloadModel`. */
  checkpoints: string[];
  totalSteps: number;
  totalTimeMs: number;
  job: string;
}

interface FullJob extends Job {
  store: { server_port: number; token: string };
}

const LOOK_MS = 500;

/** Trains the model of a training server, with agents that run here. */
export class Client {
  private readonly http: Http;
  private readonly timeoutMs: number;
  private dataId = "";

  /**
   * @param serverUrl As `agl server start` prints it, with the token of the user in it or without;
   * by default that of `AGENT_LIGHTNING_SERVER_URL`.
   */
  constructor(serverUrl: string = process.env["AGENT_LIGHTNING_SERVER_URL"] ?? "", options: ClientOptions = {}) {
    if (!/^https?:\/\//.test(serverUrl)) {
      throw new InvalidConfigError(`serverUrl=${serverUrl}: expected http://HOST:PORT, as agl server start prints it`);
    }
    const url = new URL(serverUrl);
    const token = options.apiKey ?? (decodeURIComponent(url.password) || process.env["AGENT_LIGHTNING_API_KEY"] || "");
    this.timeoutMs = options.timeoutMs ?? 300_000;
    const base = `${url.protocol}//${url.host}${url.pathname.replace(/\/$/, "")}`;
    this.http = new Http(base, token, this.timeoutMs, options.maxRetries ?? 3);
  }

  /** Upload tasks, as objects or as lines of JSON; each has a `question`. Returns their id. */
  async uploadData(train: Task[] | string, test: Task[] | string = [], dataId?: string): Promise<string> {
    const lines = (tasks: Task[] | string) =>
      typeof tasks === "string" ? tasks : tasks.map((task) => `${JSON.stringify(task)}\n`).join("");
    const body = { train: await this.send(lines(train)), test: test.length ? await this.send(lines(test)) : null, id: dataId ?? null };
    this.dataId = await this.http.ask<string>("POST", "/data", { body });
    return this.dataId;
  }

  /** Upload a file of tasks in pieces, from where an earlier try has stopped; its digest. */
  private async send(text: string): Promise<string> {
    const content = Buffer.from(text);
    const digest = createHash("sha256").update(content).digest("hex");
    let received = 0;
    let body = content.subarray(0, 0); // asks how much is there
    do {
      received = await this.http.ask<number>("PUT", `/files/${digest}?offset=${received}`, { body });
      body = content.subarray(received, received + PIECE_BYTES);
    } while (body.length);
    return digest;
  }

  /** Train to the end; the agent runs in this process, `workers` rollouts at once. */
  async train(agent: Agent, options: TrainOptions = {}): Promise<TrainingResult> {
    const data = options.dataId ?? this.dataId;
    if (!data) throw new InvalidConfigError("which data? Call uploadData first, or give dataId");
    const stamp = new Date().toISOString().replace(/[-:]|\.\d+/g, "");
    const body = {
      id: `${stamp}-${randomUUID().slice(0, 8)}`,
      data,
      kind: "train",
      epochs: options.epochs ?? 1,
      batch_size: options.batchSize ?? 32,
      eval_interval: options.evalInterval ?? 50,
    };
    const job = await this.http.ask<Job>("POST", "/jobs", { body });
    return this.attach(job.id, agent, options);
  }

  /** Take up a training that was left, failed or was stopped; without an agent, look on. */
  async attach(jobId: string, agent?: Agent, options: FollowOptions = {}): Promise<TrainingResult> {
    if (agent) await this.http.request("POST", `/jobs/${jobId}/queue`);
    const job = await this.follow(jobId, agent, options);
    return {
      finalReward: job.train_rewards.at(-1) ?? NaN,
      trainRewards: job.train_rewards,
      testRewards: job.test_rewards,
      checkpoints: Object.keys(job.checkpoints).map((name) => `${job.id}/${name}`),
      totalSteps: job.step,
      totalTimeMs: job.seconds * 1000,
      job: job.id,
    };
  }

  /** Your jobs, the oldest first. */
  jobs(): Promise<Job[]> {
    return this.http.ask<Job[]>("GET", "/jobs");
  }

  /** Stop a job; its checkpoints stay. */
  async stop(jobId: string): Promise<void> {
    await this.http.request("POST", `/jobs/${jobId}/stop`);
  }

  /** Write a checkpoint of a result into a folder, as `transformers` and vLLM load it. */
  async downloadModel(outputDir: string, checkpoint: string): Promise<void> {
    const [jobId = "", name = ""] = checkpoint.split("/");
    const { checkpoints } = await this.http.ask<Job>("GET", `/jobs/${jobId}`);
    const files = checkpoints[name];
    if (!files) throw new TrainingError(`job ${jobId} has no checkpoint ${name}; it has: ${Object.keys(checkpoints)}`);
    await mkdir(outputDir, { recursive: true });
    for (const file of files) {
      const answer = await this.http.request("GET", `/jobs/${jobId}/checkpoints/${name}/${file}`);
      if (answer.body) await pipeline(Readable.fromWeb(answer.body as never), createWriteStream(join(outputDir, file)));
    }
  }

  private async follow(jobId: string, agent: Agent | undefined, options: FollowOptions): Promise<FullJob> {
    const where = `/jobs/${jobId}${agent ? "?works=1" : ""}`;
    const crew = agent ? new Crew(agent, options.workers ?? 16) : undefined;
    let answered = Date.now();
    let told = "";
    try {
      for (;;) {
        try {
          const job = await this.http.ask<FullJob>("GET", where, { signal: options.signal });
          answered = Date.now();
          if (told !== (told = `${job.state} ${job.step}`)) options.onProgress?.(job);
          if (job.state === "finished") return job;
          if (["failed", "stopped", "damaged"].includes(job.state)) {
            throw new TrainingError(`job ${jobId} ${job.state}: ${job.error}`);
          }
          if (job.state === "running") crew?.keep(this.storeOf(job));
        } catch (error) {
          // The server may be starting again.
          if (!(error instanceof ServerConnectionError) || Date.now() - answered > this.timeoutMs) throw error;
        }
        await sleep(LOOK_MS, undefined, options.signal ? { signal: options.signal } : {});
      }
    } finally {
      await crew?.end();
    }
  }

  private storeOf(job: FullJob): StoreAddress {
    const url = new URL(this.http.url);
    return {
      url: `http://${url.hostname}:${job.store.server_port}`,
      token: job.store.token,
      modelToken: (rolloutId, attemptId) => {
        const query = new URLSearchParams({ rollout_id: rolloutId, attempt_id: attemptId });
        return this.http.ask<string>("POST", `/jobs/${job.id}/model-token?${query}`);
      },
    };
  }
}

/** The workers of a job; those that ended as the store gave no answer are started again. */
class Crew {
  private readonly leaving = new AbortController();
  private readonly running = new Map<number, Promise<void>>();
  private readonly failures: unknown[] = [];

  constructor(
    private readonly agent: Agent,
    private readonly number: number,
  ) {}

  /** Throws what else ended a worker. */
  keep(store: StoreAddress): void {
    if (this.failures.length) throw this.failures[0];
    for (let id = 0; id < this.number; id++) {
      if (this.running.has(id)) continue;
      const ended = work(this.agent, store, id, this.leaving.signal)
        .catch((error: unknown) => {
          if (!(error instanceof ServerConnectionError)) this.failures.push(error);
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
