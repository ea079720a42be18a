/** Requests that are repeated if no whole answer comes. */

import { json } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";

import * as errors from "./errors.js";

const ERRORS: Record<string, typeof errors.AglError> = {
  DatasetError: errors.DataUploadError,
  UnknownRecordError: errors.TrainingError,
};

export interface RequestOptions {
  /** Bytes, or what becomes JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  /** Ends the request, and its repetitions. */
  signal?: AbortSignal | undefined;
}

export class HttpClient {
  /** A server that sends nothing for `silenceMs` gives no answer; `tokenHelp` says what to do if the token is refused. */
  constructor(
    readonly url: string,
    private readonly token: string,
    readonly silenceMs: number,
    private readonly maxRetries: number,
    private readonly tokenHelp: string,
  ) {}

  /** The JSON that answers a request. */
  request<T = unknown>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    return this.repeat(() => json(this.stream(method, path, options)) as Promise<T>, options.signal);
  }

  /** Run again what got no whole answer. */
  async repeat<T>(run: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    for (let repetition = 0; ; repetition++) {
      try {
        return await run();
      } catch (error) {
        if (!errors.isOutage(error) || repetition >= this.maxRetries) throw error;
      }
      await sleep(200 * 2 ** repetition, undefined, signal ? { signal } : {});
    }
  }

  /** The bytes that answer a request, as they come; it is sent once. */
  async *stream(method: string, path: string, { body, headers, signal }: RequestOptions = {}): AsyncGenerator<Uint8Array> {
    const silence = new AbortController();
    const listen = () => setTimeout(() => silence.abort(), this.silenceMs);
    const isBytes = body instanceof Uint8Array;
    const init: RequestInit = {
      method,
      headers: {
        "content-type": isBytes ? "application/octet-stream" : "application/json",
        ...(this.token && { authorization: `Bearer ${this.token}` }),
        ...headers,
      },
      body: isBytes ? (body as Uint8Array<ArrayBuffer>) : body === undefined ? null : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, silence.signal]) : silence.signal,
    };
    let timer = listen();
    try {
      const answer = await fetch(this.url + path, init);
      if (!answer.ok) throw await this.errorOf(answer);
      for await (const chunk of answer.body ?? []) {
        clearTimeout(timer); // who reads may take time
        yield chunk;
        timer = listen();
      }
    } catch (error) {
      if (signal?.aborted || error instanceof errors.AglError) throw error;
      const cause = error instanceof Error ? (error.cause ?? error) : error;
      const reason = silence.signal.aborted ? `silent for ${this.silenceMs} ms` : String(cause);
      throw new errors.ServerConnectionError(
        `${this.url}: no answer, or no whole one (${reason}). If no server runs: agl server start`,
      );
    } finally {
      clearTimeout(timer);
    }
  }

  private async errorOf(answer: Response): Promise<errors.AglError> {
    if (answer.status === 401) {
      return new errors.AuthenticationError(`${this.url}: the token is missing or was refused. ${this.tokenHelp}`);
    }
    const body = (await answer.json().catch(() => ({}))) as { detail?: unknown; error_type?: string };
    const detail = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail ?? answer.statusText);
    const text = `${this.url}: HTTP ${answer.status}: ${detail}`;
    if (answer.status >= 500) return new errors.ServerConnectionError(text);
    if (answer.status === 409) return new errors.RecordChangedError(text);
    return new (ERRORS[body.error_type ?? ""] ?? errors.InvalidConfigError)(text);
  }
}
