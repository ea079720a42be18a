/**
 * A coach answers questions with a model of its own and records its lessons, and how people rated them, in lessons.jsonl.
 *
 * Its prompt is in coach-prompt.txt, if that is there. The model is at OPENAI_BASE_URL with OPENAI_API_KEY.
 */

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";

import { Recorder } from "../src/index.js";

const QUESTIONS = ["How do I lift a heavy box?", "How do I get out of bed with a bad back?"];
const LESSONS_PER_QUESTION = 2;

interface Completion {
  choices: [{ message: { content: string } }];
}

/** Stands for people, who rate lessons from 0 to 10. */
function rate(answer: string): number {
  return /breathe/i.test(answer) ? 9 : 3;
}

async function answerTo(messages: object[]): Promise<string> {
  const answer = await fetch(`${process.env["OPENAI_BASE_URL"] ?? "https://api.openai.com/v1"}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${process.env["OPENAI_API_KEY"]}` },
    body: JSON.stringify({ model: process.env["COACH_MODEL"] ?? "gpt-5-mini", messages }),
  });
  if (!answer.ok) throw new Error(`the model answered HTTP ${answer.status}: ${await answer.text()}`);
  return ((await answer.json()) as Completion).choices[0].message.content;
}

const prompt = await readFile("coach-prompt.txt", "utf8").catch(() => "You are a coach. Answer in one sentence.");
const version = createHash("sha256").update(prompt).digest("hex").slice(0, 8);
const recorder = new Recorder().resources(version, { coach: { type: "prompt_template", template: prompt } });
for (const [number, question] of QUESTIONS.entries()) {
  for (let repetition = 0; repetition < LESSONS_PER_QUESTION; repetition++) {
    const id = `${version}-${number}-${repetition}`;
    const startTime = Date.now();
    // Prompts are optimised by the system message, and compared by it.
    const asked = [
      { role: "system" as const, content: prompt },
      { role: "user" as const, content: question },
    ];
    const said = await answerTo(asked);
    const messages = [...asked, { role: "assistant" as const, content: said }];
    recorder
      .rollout({ id, input: { question }, messages, mode: "train", startTime, resourcesId: version })
      .reward({ rolloutId: id, value: rate(said) / 10, comment: "as its user said" });
  }
}
await recorder.save("lessons.jsonl");
