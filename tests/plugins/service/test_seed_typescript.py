"""The TypeScript of the document on an integration, and of the client's page, against the client.

The document names functions of a program that it does not show; here each stands for one that uses
the client. Of its four blocks three are as written. The fourth has no body, which TypeScript
refuses; one is given to it. The first one's ``beam[0]`` may be undefined for who asks the compiler
about indexes (``noUncheckedIndexedAccess``), as the client's own options do.
"""

import json
import os
import re
from pathlib import Path
from subprocess import run

import pytest

from agl.cli import cli
from agl_testing.echo_llm import EchoLLM

from .test_typescript import CLIENT, ROOT, compiled as compiled

SEEDS = Path(os.environ.get("AGL_SEEDS", ROOT.parent / "shared/seeds"))
documents = pytest.mark.skipif(not SEEDS.is_dir(), reason="needs the documents of the seeds")
FENCE = re.compile(r"^```(?:typescript|ts)\n(.*?)^```", re.M | re.S)

LLM = """
export const llm = {
  /** The answer; a list if it is one in JSON. */
  async complete({ system, user }: { system: string; user: string }): Promise<any> {
    const messages = [{ role: "system", content: system }, { role: "user", content: user }];
    const answer = await fetch(`${process.env["OPENAI_BASE_URL"]}/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "any", messages }),
    });
    const text: string = ((await answer.json()) as any).choices[0].message.content;
    return text.startsWith("[") ? JSON.parse(text) : text;
  },
};
"""
RUN_APO = """
import { Recorder } from "agl-client";
import { llm } from "./llm.js";

interface TrainingExample { question: string; answer: string }
interface Rollout { question: string; said: string; score: number }
const recorder = new Recorder();
let made = 0;

async function executeRollouts(prompt: string, given: TrainingExample[]): Promise<Rollout[]> {
  const rollouts: Rollout[] = [];
  for (const { question, answer } of given) {
    const said: string = await llm.complete({ system: prompt, user: question });
    const score = said === answer ? 10 : 0;
    const id = `rollout-${made++}`;
    const messages = [
      { role: "system" as const, content: prompt },
      { role: "user" as const, content: question },
      { role: "assistant" as const, content: said },
    ];
    recorder.rollout({ id, input: { question }, messages, startTime: Date.now() });
    recorder.reward({ rolloutId: id, value: score / 10 });
    rollouts.push({ question, said, score });
  }
  return rollouts;
}

async function evaluateCandidates(prompts: string[], given: TrainingExample[]): Promise<number[]> {
  const each = await Promise.all(prompts.map((prompt) => executeRollouts(prompt, given)));
  return each.map((rollouts) => rollouts.reduce((sum, one) => sum + one.score, 0));
}

function selectTopK(prompts: string[], scores: number[], count: number): string[] {
  const order = [...prompts.keys()].sort((a, b) => (scores[b] ?? 0) - (scores[a] ?? 0));
  return order.slice(0, count).map((at) => prompts[at] ?? "");
}

const formatRollouts = (rollouts: Rollout[]) => JSON.stringify(rollouts);
"""
EXPORTER = """
import { writeFile } from "node:fs/promises";
import type { PromptTemplate, RecordedReward, RecordedRollout } from "agl-client";

interface AgentLightningDataset {
  rollouts: RecordedRollout[];
  resources: (PromptTemplate & { name: string })[];
  rewards: RecordedReward[];
}
interface TrainingEvent {
  eventType: string; attempt: string; said: string; score: number; at: number;
}

const at = Date.now();
const getTrainingEventsBySession = (sessionId: string): TrainingEvent[] =>
  ["Breathe out.", "Just lift."].flatMap((said, number) =>
    ["attempt.started", "attempt.completed", "artifact.scored"].map((eventType) => (
      { eventType, attempt: `${sessionId}-${number}`, said, score: 9 - number, at }
    )));
const getAgentDefinitions = (_: string) => [{ id: "coach", systemPrompt: "You are a coach." }];
const toAgentLightningRollout = ({ attempt, said, at }: TrainingEvent): RecordedRollout => (
  { id: attempt, input: "How do I lift a box?", output: said, startTime: at }
);
const toAgentLightningResource = ({ id, systemPrompt }: { id: string; systemPrompt: string }) => (
  { name: id, type: "prompt_template" as const, template: systemPrompt }
);
const toAgentLightningReward = ({ attempt, score }: TrainingEvent): RecordedReward => (
  { rolloutId: attempt, value: score / 10 }
);
"""
GRADIENT = """
import { llm } from "./llm.js";

interface AgentDefinition { id: string; systemPrompt: string }
interface Attempt { input: string; output: string; score: number; comment: string }
const GRADIENT_SYSTEM_PROMPT = "Analyze these failed attempts.";
const formatForGradient = (prompt: string, analysis: object[]) => prompt + JSON.stringify(analysis);
"""
BEAM = """
interface AgentDefinition { id: string; systemPrompt: string }
interface TestCase { question: string; answer: string }
interface BeamSearchOptions { beamWidth: number; branchFactor: number; rounds: number }
"""
BODY = """
  const prompt = await runAPO(agent.systemPrompt, trainingData, trainingData, options);
  return { ...agent, systemPrompt: prompt };
"""
SEARCH = "[{ question: '2 + 2?', answer: '4' }]", "{ beamWidth: 1, branchFactor: 2, rounds: 2 }"
OPENAI = """
export default class OpenAI {
  constructor(options: { baseURL: string; apiKey: string });
  chat: { completions: { create(body: object, options: { signal: AbortSignal }): Promise<{
    choices: [{ message: { content: string | null } }] }> } };
}
"""


def programs() -> dict[str, str]:
    """Name -> program; those of the document are named by the line of their block."""
    text = (SEEDS / "004_aa51c9a79f5ddfc7.txt").read_text(encoding="utf-8")
    blocks = {text[: one.start()].count("\n") + 1: one[1] for one in FENCE.finditer(text)}
    assert blocks.keys() == {88, 160, 184, 209}
    data, options = SEARCH
    agent = "{ id: 'coach', systemPrompt: 'Guess.' }"
    attempts = "[{ input: '2 + 2?', output: 'five', score: 0, comment: 'no' }]"
    apo = RUN_APO + blocks[88]
    filled, comments = re.subn(r"(  //.*\n)+", BODY, blocks[209].split("\n", 1)[1])
    assert comments == 1
    readme = FENCE.findall((CLIENT / "README.md").read_text(encoding="utf-8"))
    return {
        "llm": LLM,
        "line88": f"""{apo}
            console.log(await runAPO("Guess.", {data}, {data}, {options}));
            await recorder.save("rollouts.jsonl");""",
        "line160": f"""{EXPORTER}{blocks[160]}
            await writeFile("session.json", JSON.stringify(exportForAgentLightning("s")));""",
        "line184": f"""{GRADIENT}{blocks[184]}
            console.log(await computeTextualGradient({agent}, {attempts}));""",
        "line209": BEAM + blocks[209],
        "line209_with_a_body": f"""{apo.replace("beam[0]", "beam[0]!")}{BEAM}{filled}
            console.log((await beamSearchEvolution({agent}, {data}, {options})).systemPrompt);""",
        **{f"readme{number}": block for number, block in enumerate(readme)},
    }


def model(body):
    system = body["messages"][0]["content"]
    if system.startswith("Analyze"):
        return "It guesses."
    if system.startswith("Generate"):
        return '["Guess again.", "Add the numbers."]'
    return "4" if "Add" in system else "five"


@documents
@pytest.mark.nightly
def test_blocks_are_typed_and_run(compiled, here):
    options = {"outDir": "dist", "rootDir": ".", "typeRoots": [f"{CLIENT}/node_modules/@types"]}
    config = {"extends": f"{CLIENT}/tsconfig.json", "compilerOptions": options, "include": ["*.ts"]}
    Path("tsconfig.json").write_text(json.dumps(config))
    Path("package.json").write_text('{"type": "module"}')
    Path("node_modules/openai").mkdir(parents=True)
    Path("node_modules/openai/index.d.ts").write_text(OPENAI)
    Path("node_modules/openai/package.json").write_text('{"type": "module", "types": "index.d.ts"}')
    Path("node_modules/agl-client").symlink_to(compiled)
    for name, text in programs().items():
        Path(f"{name}.ts").write_text(text)
    checked = run([f"{CLIENT}/node_modules/.bin/tsc"], capture_output=True, text=True)
    errors = re.findall(r"^(\w+)\.ts\(.*error (\w+): (.*)", checked.stdout, re.M)
    assert [(name, code) for name, code, _ in errors] == [
        ("line209", "TS2355"),  # a function that promises a value must return one
        ("line88", "TS2322"),  # beam[0] is undefined, if it is empty
    ], checked.stdout

    with EchoLLM(model) as llm:
        env = {**os.environ, "OPENAI_BASE_URL": llm.url}

        def said(name: str) -> str:
            ended = run(["node", f"dist/{name}.js"], env=env, capture_output=True, text=True)
            assert (ended.returncode, ended.stderr) == (0, "")
            return ended.stdout.strip()

        assert said("line88") == "Add the numbers."
        assert said("line209_with_a_body") == "Add the numbers."
        assert said("line184") == "It guesses."
        assert said("line160") == ""
    for file, kind in (("rollouts.jsonl", "messages"), ("session.json", "dpo")):
        cli.main(["import", file, "--path", f"{kind}.db"], standalone_mode=False)
        words = "export", "--as", kind, "--path", f"{kind}.db", "-o", f"{kind}.jsonl"
        cli.main([*words], standalone_mode=False)
    conversations = [json.loads(line) for line in Path("messages.jsonl").read_text().splitlines()]
    by_prompt = {one["messages"][0]["content"]: one["reward"] for one in conversations}
    assert by_prompt == {"Guess.": 0, "Guess again.": 0, "Add the numbers.": 1}
    (pair,) = map(json.loads, Path("dpo.jsonl").read_text().splitlines())
    assert pair["chosen"][0]["content"] == "Breathe out."
