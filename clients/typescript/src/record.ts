/** Rollouts that ran elsewhere, as `agl import` reads them; times may be JavaScript's milliseconds. */

import { writeFile } from "node:fs/promises";

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  [field: string]: unknown;
}

export interface RecordedRollout {
  id: string;
  /** Rollouts with equal inputs are siblings: pairs are made of them. */
  input: unknown;
  /** The answer, if the input is a text. */
  output?: string;
  /** The conversation; each message of the assistant is a model call. */
  messages?: Message[];
  mode?: "train" | "val" | "test";
  status?: "succeeded" | "failed";
  error?: string;
  startTime?: number;
  resourcesId?: string;
  metadata?: Record<string, unknown>;
}

export interface RecordedReward {
  rolloutId: string;
  value: number;
  /** Of which call of the rollout, from 0; else of the whole. */
  call?: number;
  comment?: string;
}

export interface PromptTemplate {
  type: "prompt_template";
  template: string;
}

/** Collects rollouts, rewards and prompts, and writes them as JSON lines. */
export class Recorder {
  private readonly lines: string[] = [];

  rollout(rollout: RecordedRollout): this {
    return this.add({ rollout });
  }

  reward(reward: RecordedReward): this {
    if (!Number.isFinite(reward.value)) throw new TypeError(`reward of ${reward.rolloutId}: ${reward.value}`);
    return this.add({ reward });
  }

  /** The prompt that rollouts were made with, named by their `resourcesId`. */
  resources(id: string, resources: Record<string, PromptTemplate>): this {
    return this.add({ resource: { id, resources } });
  }

  /** Write a file for `agl import FILE.jsonl --path STORE`. */
  async save(file: string): Promise<void> {
    await writeFile(file, this.lines.join(""));
  }

  private add(record: unknown): this {
    this.lines.push(`${JSON.stringify(record)}\n`);
    return this;
  }
}
