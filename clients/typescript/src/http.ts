/** Requests that are repeated while nobody answers. */

import { setTimeout as sleep } from "node:timers/promises";

import { DataUploadError, InvalidConfigError, ServerConnectionError, TrainingError } from "./errors.js";

const KINDS: Record<string, typeof TrainingError> = {
  DatasetError: DataUploadError,
  UnknownRecordError: TrainingError,
};

export interface RequestOptions {
  body?: unknown;
  headers?: Record<string, string>;
  /** Ends the request, and its repetitions. */
  signal?: AbortSignal | undefined;
}

export class Http {
  constructor(
    readonly url: string,
    private readonly token: string,
    private readonly timeoutMs: number,
    private readonly maxRetries: number,
  ) {}

  async ask<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    return (await (await this.request(method, path, options)).json()) as T;
  }

  async request(method: string, path: string, options: RequestOptions = {}): Promise<Response> {
    const timeout = AbortSignal.timeout(this.timeoutMs);
    const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
    const headers: Record<string, string> = { ...options.headers };
    if (this.token) headers["authorization"] = `Bearer ${this.token}`;
    const asked: RequestInit = { method, headers, signal };
    if (options.body instanceof Uint8Array) {
      headers["content-type"] = "application/octet-stream";
      asked.body = options.body as Uint8Array<ArrayBuffer>;
    } else if (options.body !== undefined) {
      headers["content-type"] = "application/json";
      asked.body = JSON.stringify(options.body);
    }
    let failure: unknown;
    for (let repetition = 0; repetition <= this.maxRetries; repetition++) {
      try {
        const answer = await fetch(this.url + path, asked);
        if (answer.ok) return answer;
        const error = await errorOf(answer, this.url);
        if (answer.status < 500) throw error;
        failure = error.message;
      } catch (error) {
        if (options.signal?.aborted || KNOWN.some((kind) => error instanceof kind)) throw error;
        failure = error instanceof Error ? (error.cause ?? error) : error;
        if (timeout.aborted) break;
      }
      if (repetition < this.maxRetries) await sleep(200 * 2 ** repetition, undefined, { signal: options.signal });
    }
    throw new ServerConnectionError(
      `${this.url}: no answer (${String(failure)}). If no server runs: agl server start`,
    );
  }
}

/** The record is no longer as the caller thinks, as an attempt that was given up. */
export class RecordChangedError extends InvalidConfigError {}

const KNOWN = [DataUploadError, InvalidConfigError, ServerConnectionError, TrainingError];

async function errorOf(answer: Response, url: string): Promise<Error> {
  const said = (await answer.json().catch(() => ({}))) as { detail?: unknown; error_type?: string };
  const detail = typeof said.detail === "string" ? said.detail : JSON.stringify(said.detail);
  const text = `${url}: HTTP ${answer.status}: ${detail}`;
  if (answer.status === 401) return new ServerConnectionError(text);
  if (answer.status === 409) return new RecordChangedError(text);
  return new (KINDS[said.error_type ?? ""] ?? InvalidConfigError)(text);
}
