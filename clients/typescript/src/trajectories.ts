/** What the agents of a job did, as transitions: what the model read, answered and was rewarded for. */

import type { Message } from "./record.js";

/** A call of the model. */
export interface Transition {
  /** The prompt: of one message its text, of several each with its role before it. */
  input: string;
  output: string;
  /** The sum of the rewards that are about this call; 0 for none. */
  reward: number;
  /** `messages` and `toolCalls` in full, and the ids of rollout, attempt and span. */
  metadata: { messages: Message[]; toolCalls: unknown[]; provenance: Record<string, unknown> };
}

/** A rollout that succeeded. */
export interface Trajectory {
  /** Of its rollout: `rolloutId` in the metadata of `Resource`. */
  taskId: string;
  transitions: Transition[];
  totalReward: number;
  metadata: { numSteps: number };
}

interface ExportedCall {
  prompt: Message[];
  completion: [{ content?: string | null; tool_calls?: unknown[] | null }];
  reward: number | null;
  provenance: { rollout_id: string };
}

/** Trajectories of what `agl export --as sft --credit per_call` writes. */
export async function* readTrajectories(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Trajectory> {
  let taskId = "";
  const calls: ExportedCall[] = [];
  for await (const line of linesOf(bytes)) {
    const call = JSON.parse(line) as ExportedCall;
    if (calls.length && call.provenance.rollout_id !== taskId) yield trajectoryOf(taskId, calls.splice(0));
    taskId = call.provenance.rollout_id;
    calls.push(call);
  }
  if (calls.length) yield trajectoryOf(taskId, calls);
}

function trajectoryOf(taskId: string, calls: ExportedCall[]): Trajectory {
  const transitions = calls.map(transitionOf);
  const total = transitions.reduce((sum, { reward }) => sum + reward, 0);
  return { taskId, transitions, totalReward: total, metadata: { numSteps: calls.length } };
}

function transitionOf({ prompt, completion: [answer], reward, provenance }: ExportedCall): Transition {
  const texts = prompt.map(({ content }) => (Array.isArray(content) ? JSON.stringify(content) : (content ?? "")));
  return {
    input: texts.length === 1 ? texts.join() : texts.map((text, at) => `${prompt[at]?.role}: ${text}`).join("\n"),
    output: answer.content ?? "",
    reward: reward ?? 0,
    metadata: { messages: prompt, toolCalls: answer.tool_calls ?? [], provenance },
  };
}

async function* linesOf(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of bytes) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
  }
  if (rest) yield rest;
}
