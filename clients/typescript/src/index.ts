/** Client of a training server of agl; see README.md. */

import { createHash, randomUUID } from "node:crypto";
import { createWriteStream } from "node:fs";
import { mkdir, rename } from "node:fs/promises";
import { join } from "node:path";
import { json } from "node:stream/consumers";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";

import { InvalidConfigError, isOutage, TrainingError } from "./errors.js";
import { HttpClient } from "./http.js";
import { readTrajectories, type Trajectory } from "./trajectories.js";
import { type Agent, type JobAddress, type Task, WorkerPool } from "./worker.js";

export * from "./errors.js";
export * from "./record.js";
export type { Trajectory, Transition } from "./trajectories.js";
export { type Agent, type Resource, rewardSpan, type JobAddress, type Task, Worker, WorkerPool } from "./worker.js";

const PIECE_BYTES = 2 ** 22;
const POLL_MS = 500;
const TOKEN_HELP =
  "That of a user stands in the address that agl server users add prints; it may also be apiKey, or AGENT_LIGHTNING_API_KEY";

export interface ClientOptions {
  /** Token of the user, if it does not stand in the address; else `AGENT_LIGHTNING_API_KEY`. */
  apiKey?: string;
  /** How long the server may send nothing to a request, and be away while a job runs; 300,000 by default. */
  timeoutMs?: number;
  /** How often a request that gets no whole answer is repeated; 3 by default. */
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

export interface EvaluateOptions extends FollowOptions {
  /** Tasks to upload; by default the test tasks uploaded last, or training tasks if it had none. */
  test?: Task[] | string;
  /** See `downloadModel`, or `base`, the model before any training; by default `latest`, or `base` if nothing was trained. */
  checkpoint?: string;
}

/** Uploaded data. */
export interface DataRecord {
  id: string;
  train_tasks: number;
  test_tasks: number;
  /** Unix time in seconds. */
  created: number;
  /** Why it cannot be used, if it is damaged. */
  error: string;
}

/** A job, as the server tells of it. */
export interface Job {
  id: string;
  kind: "train" | "evaluate";
  state: "queued" | "running" | "paused" | "stopped" | "finished" | "failed" | "damaged";
  error: string;
  step: number;
  steps: number;
  /** Mean reward of each update; null if no rollout had one. */
  train_rewards: (number | null)[];
  test_rewards: (number | null)[];
  /** Name -> files. */
  checkpoints: Record<string, string[]>;
  best: string;
  seconds: number;
  run: string;
  /** What an evaluation evaluates. */
  checkpoint: string;
}

/** What a training came to. */
export interface TrainingResult {
  /** Mean reward of the last update that has one. */
  finalReward: number;
  /** Mean reward of each update; NaN if no rollout had one. */
  trainRewards: number[];
  testRewards: number[];
  /** For `downloadModel`. */
  checkpoints: string[];
  totalSteps: number;
  totalTimeMs: number;
  job: string;
  /** The id of its run, in the store of the job. */
  run: string;
}

/** What an evaluation came to. */
export interface EvalResult {
  meanReward: number;
  /** Of rollouts that succeeded, in the order of the tasks. */
  rewards: number[];
  /** Cause -> how many rollouts failed by it. */
  failures: Record<string, number>;
  /** What was evaluated. */
  checkpoint: string;
  job: string;
}

interface FullJob extends Job {
  evaluation: { metrics: Record<string, number>; tasks: { rewards: number[] }[]; failures: Record<string, number> } | null;
  path: string;
  token: string;
}

/** Trains the model of a training server, with agents that run here. */
export class Client {
  private readonly http: HttpClient;
  private dataId = "";

  /** `serverUrl` is as `agl server start` prints it, with the token of the user in it or without. */
  constructor(serverUrl: string = process.env["AGENT_LIGHTNING_SERVER_URL"] ?? "", options: ClientOptions = {}) {
    if (!/^https?:\/\//.test(serverUrl)) {
      throw new InvalidConfigError(`serverUrl=${serverUrl}: expected http://HOST:PORT, as agl server start prints it`);
    }
    const url = new URL(serverUrl);
    const token = options.apiKey ?? (decodeURIComponent(url.password) || process.env["AGENT_LIGHTNING_API_KEY"] || "");
    const base = `${url.protocol}//${url.host}${url.pathname.replace(/\/$/, "")}`;
    this.http = new HttpClient(base, token, options.timeoutMs ?? 300_000, options.maxRetries ?? 3, TOKEN_HELP);
  }

  /** Upload tasks, as objects or as lines of JSON; each has a `question`. Returns their id. */
  async uploadData(train: Task[] | string, test: Task[] | string = [], dataId?: string): Promise<string> {
    this.dataId = await this.addData(train, test, dataId);
    return this.dataId;
  }

  /** Your data. */
  data(): Promise<DataRecord[]> {
    return this.http.request<DataRecord[]>("GET", "/data");
  }

  /** Delete data; jobs keep the tasks with which they began. */
  async deleteData(dataId: string): Promise<void> {
    await this.http.request("DELETE", `/data/${dataId}`);
  }

  private async addData(train: Task[] | string, test: Task[] | string = [], id: string | null = null): Promise<string> {
    const body = { train: await this.uploadFile(train), test: test.length ? await this.uploadFile(test) : null, id };
    return this.http.request<string>("POST", "/data", { body });
  }

  /** Upload tasks in pieces, from where an earlier try has stopped; the digest of their file. */
  private async uploadFile(tasks: Task[] | string): Promise<string> {
    const lines = typeof tasks === "string" ? tasks : tasks.map((task) => `${JSON.stringify(task)}\n`).join("");
    const content = Buffer.from(lines);
    const digest = createHash("sha256").update(content).digest("hex");
    let received = 0;
    let body = content.subarray(0, 0); // asks how much is there
    do {
      received = await this.http.request<number>("PUT", `/files/${digest}?offset=${received}`, { body });
      body = content.subarray(received, received + PIECE_BYTES);
    } while (body.length);
    return digest;
  }

  /** Train to the end; the agent runs in this process, `workers` rollouts at once. */
  async train(agent: Agent, options: TrainOptions = {}): Promise<TrainingResult> {
    const pool = new WorkerPool(agent, options.workers);
    const jobId = await this.begin("train", options.dataId ?? this.dataId, {
      epochs: options.epochs ?? 1,
      batch_size: options.batchSize ?? 32,
      eval_interval: options.evalInterval ?? 50,
    });
    return trainingOf(await this.follow(jobId, pool, options));
  }

  /** Run an agent on each test task once. */
  async evaluate(agent: Agent, options: EvaluateOptions = {}): Promise<EvalResult> {
    const pool = new WorkerPool(agent, options.workers);
    const dataId = options.test === undefined ? this.dataId : await this.addData(options.test);
    const trained = (await this.jobs()).some((job) => Object.keys(job.checkpoints).length);
    const wanted = options.checkpoint ?? (trained ? "latest" : "base");
    const found = wanted === "base" ? undefined : await this.findCheckpoint(wanted);
    const jobId = await this.begin("evaluate", dataId, { checkpoint: found ? `${found.jobId}/${found.name}` : null });
    return evaluationOf(await this.follow(jobId, pool, options));
  }

  /** Take up a job that was left, failed or was stopped; without an agent, look on. */
  async attach(jobId: string, agent?: Agent, options: FollowOptions = {}): Promise<TrainingResult | EvalResult> {
    const pool = agent && new WorkerPool(agent, options.workers);
    if (pool) await this.http.request("POST", `/jobs/${jobId}/queue`);
    const job = await this.follow(jobId, pool, options);
    return job.kind === "train" ? trainingOf(job) : evaluationOf(job);
  }

  /** Your jobs, the oldest first. */
  jobs(): Promise<Job[]> {
    return this.http.request<Job[]>("GET", "/jobs");
  }

  /** Stop a job; its checkpoints stay. */
  async stop(jobId: string): Promise<void> {
    await this.http.request("POST", `/jobs/${jobId}/stop`);
  }

  /** What the agents of a training did, rollout by rollout; asked for once. */
  async *trajectories(jobId: string): AsyncGenerator<Trajectory> {
    yield* readTrajectories(this.http.stream("GET", `/jobs/${jobId}/trajectories`));
  }

  /** Write a checkpoint (of a result, or `latest` or `best` of the newest job) into a folder, as `transformers` and vLLM load it. */
  async downloadModel(outputDir: string, checkpoint = "latest"): Promise<void> {
    const { jobId, name, files } = await this.findCheckpoint(checkpoint);
    await mkdir(outputDir, { recursive: true });
    for (const file of files) {
      const path = `/jobs/${jobId}/checkpoints/${name}/${file}`;
      const partial = join(outputDir, `${file}.partial`);
      await this.http.repeat(() => pipeline(this.http.stream("GET", path), createWriteStream(partial)));
      await rename(partial, join(outputDir, file));
    }
  }

  private async findCheckpoint(given: string): Promise<{ jobId: string; name: string; files: string[] }> {
    const [, wantedId = "", wanted = ""] = /^(?:checkpoints\/)?(?:(.*)\/)?(.*)$/.exec(given) ?? [];
    const trained = (await this.jobs()).filter((job) => Object.keys(job.checkpoints).length);
    const job = trained.filter(({ id }) => !wantedId || id === wantedId).at(-1);
    const known: Record<string, string | undefined> = { latest: Object.keys(job?.checkpoints ?? {}).at(-1), best: job?.best };
    const name = (known[wanted] ?? wanted).replace(/\d+$/, (digits) => digits.padStart(6, "0"));
    const files = job?.checkpoints[name];
    if (job && files) return { jobId: job.id, name, files };
    const names = trained.flatMap(({ id, checkpoints }) => Object.keys(checkpoints).map((one) => `${id}/${one}`));
    const there = names.length ? `${names.join(", ")}, and best once an evaluation has measured one` : "none, train first";
    throw new TrainingError(`no checkpoint ${given}; there are: ${there}`);
  }

  private async begin(kind: "train" | "evaluate", data: string, more: Record<string, unknown>): Promise<string> {
    if (!data) throw new InvalidConfigError("which data? Call uploadData first, or give dataId");
    const body = { id: randomUUID(), kind, data, ...more }; // the server takes two requests with one id for the same one
    return (await this.http.request<Job>("POST", "/jobs", { body })).id;
  }

  /** The job at its end; the workers run its agent meanwhile. */
  private async follow(jobId: string, pool: WorkerPool | undefined, options: FollowOptions): Promise<FullJob> {
    const path = `/jobs/${jobId}${pool ? "?has_workers=1" : ""}`;
    let answeredAt = Date.now();
    let reported = "";
    try {
      for (;;) {
        try {
          const job = (await json(this.http.stream("GET", path, { signal: options.signal }))) as FullJob;
          answeredAt = Date.now();
          if (reported !== `${job.state} ${job.step}`) options.onProgress?.(job);
          reported = `${job.state} ${job.step}`;
          if (job.state === "finished") return job;
          if (["failed", "stopped", "damaged"].includes(job.state)) {
            throw new TrainingError(`job ${jobId} ${job.state}: ${job.error}`);
          }
          if (job.state === "running") pool?.ensureRunning(this.addressOf(job));
        } catch (error) {
          if (!isOutage(error) || Date.now() - answeredAt > this.http.silenceMs) throw error;
        }
        await sleep(POLL_MS, undefined, options.signal ? { signal: options.signal } : {});
      }
    } finally {
      await pool?.end();
    }
  }

  private addressOf(job: FullJob): JobAddress {
    return {
      url: this.http.url + job.path,
      token: job.token,
      modelToken: (rolloutId, attemptId) => {
        const query = new URLSearchParams({ rollout_id: rolloutId, attempt_id: attemptId });
        return this.http.request<string>("POST", `/jobs/${job.id}/model-token?${query}`);
      },
    };
  }
}

function trainingOf(job: FullJob): TrainingResult {
  return {
    finalReward: job.train_rewards.filter((one) => one !== null).at(-1) ?? NaN,
    trainRewards: job.train_rewards.map((one) => one ?? NaN),
    testRewards: job.test_rewards.map((one) => one ?? NaN),
    checkpoints: Object.keys(job.checkpoints).map((name) => `${job.id}/${name}`),
    totalSteps: job.step,
    totalTimeMs: job.seconds * 1000,
    job: job.id,
    run: job.run,
  };
}

function evaluationOf({ id, checkpoint, evaluation }: FullJob): EvalResult {
  return {
    meanReward: evaluation?.metrics["reward/mean"] ?? NaN,
    rewards: evaluation?.tasks.flatMap((task) => task.rewards) ?? [],
    failures: evaluation?.failures ?? {},
    checkpoint,
    job: id,
  };
}
