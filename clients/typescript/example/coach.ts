/** A coach records its lessons and what people thought of them; agl learns from the file. */

import { Recorder } from "../src/index.js";

const lessons = [
  { id: "lesson-1", said: "Breathe out, then lift.", score: 9 },
  { id: "lesson-2", said: "Just lift.", score: 3 },
];

const recorder = new Recorder().resources("coach-1", {
  coach: { type: "prompt_template", template: "You are a coach. {question}" },
});
for (const { id, said, score } of lessons) {
  const messages = [
    { role: "user" as const, content: "How do I lift a heavy box?" },
    { role: "assistant" as const, content: said },
  ];
  recorder
    .rollout({ id, input: { question: "box" }, messages, mode: "train", startTime: Date.now(), resourcesId: "coach-1" })
    .reward({ rolloutId: id, value: score / 10, comment: "as its user said" });
}
await recorder.save("lessons.jsonl");
