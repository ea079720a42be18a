"""What to do about each reason why something trained nothing, and about each failed boundary."""

from agl_records.types import ExclusionReason

FIXES: dict[ExclusionReason, str] = {
    "no_token_ids": "Serve the model with something that returns token ids (vLLM with "
    "return_token_ids, agl-torch) behind the gateway; text alone can still be exported: "
    "agl export --as sft",
    "structured_output": "Let the agent ask for text or tool calls and parse them itself, or call "
    "the model through the gateway, which keeps what was sampled",
    "no_logprobs": "Serve the model with something that returns log-probabilities of each token, "
    "and do not switch 'logprobs' off in the agent's requests. vLLM: --max-logprobs 1 or more; "
    "SGLang leaves them out where a reasoning or tool parser is on: take the parser off",
    "unrecognised_span": "Let the tracer record messages; write a reader, a plugin of agl.dialects "
    "(docs/howto/write-a-plugin.md); or call the model through the gateway (base_url=llm.endpoint)",
    "model_error": "Look at the error of the call: agl spans shows its span; the backend's log "
    "says more",
    "infrastructure": "Look at the error of the failed call: agl spans shows its span. More "
    "num_retries in the gateway, or fewer rollouts at once, may help",
    "refused_reward": "Give a number from -1e12 to 1e12: agl.emit_reward(value), or the agent's "
    "result; a link of it needs its key and its value",
    "malformed": "Look at the span of the call; the message says what cannot be",
    "malformed_message": "Give every message a 'role' (system, user, assistant, tool) and a "
    "'content'",
    "over_length": "Raise the adapter's max_length, or shorten what the agent sends",
    "agent_not_selected": "Match one of the names that the agents have (NAMES) with the adapter's "
    "agent_match, or leave it out",
    "other_model": "Intended for a judge or a helper; else let the agent ask for the model of its "
    "LLM resource at its address (model=llm.model, base_url=llm.endpoint)",
    "judge": "Intended for a judge; else call the model outside of the span that holds the reward",
    "perhaps_judge": "Send the header traceparent with each call (OpenTelemetry's instrumentation "
    "of the client does), or set the reward with agl.emit_reward, outside of spans around calls",
    "unused_choice": "Nothing to do: of several answers the one that was used earns the reward",
    "unknown_choice": "Ask for one answer at a time; or go on with the chosen one, or name it: "
    "agl.emit_choice(response.id, index)",
    "images": "Let another model see the images, and the trained one read its words: only token "
    "ids are trained",
    "empty_answer": "Look at the request (a stop text that comes first, max_tokens); or the model "
    "ends at once",
    "unfinished": "The server stopped the answer itself (abort: weights changed, or a client hung "
    "up; error: its log says which). Pause it with agl's gateway while weights change; vLLM: "
    "finish_weight_update with mode 'keep', SGLang: pause_generation",
    "contradictory_answer": "The server's parser of tool calls or thoughts lost what the model "
    "wrote: compare the tokens in agl spans, and choose the parser of the model (vLLM and SGLang: "
    "--tool-call-parser, --reasoning-parser)",
    "token_count_mismatch": "vLLM without vllm#29074 drops ids of streamed tool calls: "
    "update it, ask without 'stream', or serve without --tool-call-parser. Of other servers, see "
    "docs/reference/answers.md",
    "broken_tool_call": "The model wrote it, or the server's parser of tool calls did: compare "
    "the tokens in agl spans, and choose the parser of the model (vLLM and SGLang: "
    "--tool-call-parser). 'wrong_tool_calls: train' of the adapter trains it",
    "unknown_tool": "Offer the tool in the request; else as broken_tool_call: two names glued "
    "together are the server's parser's fault",
    "unknown_version": "Serve the model with something that says which weights sampled "
    "(weight_versions, model_version): agl-torch, vLLM with return_weight_versions; or leave "
    "max_staleness out",
    "truncated": "Raise max_tokens, or ask for shorter answers; 'truncated: train' of the adapter "
    "'rows' trains them all the same",
    "failed_attempt": "Make the attempt succeed; see its error",
    "superseded_attempt": "Nothing to do: the attempt that succeeded counts",
    "no_reward": "Return a number from the agent, or call agl.emit_reward(value); under the "
    "credit rules per_call and per_agent, give each call or agent its own",
    "zero_advantage": "Nothing to do for one rollout; over many, the rewards of a task's rollouts "
    "must differ",
    "not_trained_mode": "Give training tasks: 'train: FILE'",
    "below_threshold": "Lower min_reward, or give tasks that the agent can do at times",
    "not_selected": "Intended; a larger keep_fraction takes more",
    "not_paired": "Run each task more often (rollouts_per_task), with rewards that tell a better "
    "answer from a worse one",
    "rejected": "Collect nearer to the weights that are trained, or widen the limits: "
    "sampling_correction.cap, with verl algorithm.rollout_correction",
    "unused_group": "Let rollouts fail less often, or allow older ones "
    "(trainer.v1.sampler.max_off_policy_threshold)",
    "no_calls": "Give the agent's client the address of its LLM resource "
    "(OpenAI(base_url=llm.endpoint)), or choose a tracer that instruments the client. See: agl "
    "plugins",
    "not_run": "Let a runner run it",
    "reward_before_call": "Emit the reward after the call that it is about, or link it to the call",
    "superseded_reward": "Intended, if it only reports progress, or the agent has a grader, whose "
    "reward counts alone; else choose a credit rule that uses intermediate rewards: credit: "
    "per_call, or discounted",
    "unordered_reward": "The gateway did not answer in time while the agent ran: see the log. Link "
    "rewards to their calls: emit_reward(value, attributes=make_link_attributes(...))",
    "unused_reward": "Name an agent that made calls, or link the reward to a call; or choose "
    "another credit rule",
}

PAST_THE_GATEWAY = (
    "The calls were recorded by a tracer and went past the gateway. Give the agent's client the "
    "address of its LLM resource: OpenAI(base_url=llm.endpoint)"
)
CALLS_NO_MODEL = (
    "The agent takes no model, so there are no weights to train. The algorithm 'baseline' measures "
    "it, and 'apo' improves a prompt that it takes (prompt_template: agl.PromptTemplate). To train "
    "a model, give it one: a parameter llm: agl.LLM"
)
CALLS_MIX = (
    "Make the client in the agent, with base_url=llm.endpoint; or keep to one rollout at a time in "
    "a process: concurrency 1, and strategy 'cs' for several runners"
)
BLOCKS_LOOP = (
    "Await there (openai.AsyncOpenAI, asyncio.sleep, asyncio.to_thread); or make the agent a plain "
    "function (def), which has a thread for each rollout"
)
CONSTANT_PROMPT = (
    "As it should be, if the agent says the task elsewhere; else put a name in braces where the "
    "task goes, as in 'Answer {question}', and call prompt_template.format(question=...)"
)
PROMPT_LOST = (
    "The tokenizer is not the model's, has no pre_tokenizer or vocabulary for this text (one that "
    "is set after the tokenizer was wrapped has no effect), or its chat template leaves the "
    "content out"
)
CUT_OFF = (
    "They are trained as any other. Raise max_tokens; or set the adapter's truncated to 'mask' "
    "(such answers are not trained) or 'exclude' (nor is anything else of their attempts)"
)
BROKEN_CALL = (
    "Such answers are trained, with what reward the agent gives. Raise max_tokens where they were "
    "cut off; else look at the server's parser of tool calls (--tool-call-parser)"
)
UNKNOWN_TOOL = (
    "Such answers are trained, with what reward the agent gives. Two names glued together are the "
    "fault of the server's parser of tool calls (--tool-call-parser)"
)
TOO_LONG = "Shorten what the agent sends, or give the model's server a longer limit"
NO_AGENT_NAMES = (
    "No call says which agent made it. Leave the adapter's agent_match out; or name the agent in "
    "each request, with the header x-agl-agent, or with a span around it that has "
    "gen_ai.agent.name"
)

FAILURE_FIXES: dict[str, str] = {
    "agent": "The agent raised; a failed attempt trains nothing, and counts as no reward. Where "
    "failing is part of the task, return a low reward instead of raising",
    "timeout": "Raise the algorithm's timeout of rollouts, or make the agent quicker",
    "tracer": "The tracer failed; try 'tracer: otel'",
    "model": "The model could not be called; look at the gateway's backend",
    "evaluator": "The reward could not be computed; fix the evaluation",
    "cancelled": "It was stopped from outside; run the doctor again",
    "store": "The store refused something that the attempt wrote; the message says what. Write "
    "less into one span",
    "lost": "Another rollout blocked the event loop; await what takes long",
    "resources": "Publish the resource that the agent asks for: 'resources:' in the configuration, "
    "or an algorithm that serves a model",
    "hook": "A hook failed; take it out of 'hooks:' to see whether it is the cause",
}
EQUAL_REWARDS = (
    "Let the reward depend on the answer, and tell better from worse; where the task is merely too "
    "hard or too easy, see another (--task N), or sample warmer"
)
