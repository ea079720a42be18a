// The agent in another language: it knows OpenAI's client, and nothing of agl.
// Environment: OPENAI_BASE_URL, OPENAI_API_KEY, MODEL, AGENT_NAME. Argument: the question.
import OpenAI from "openai";

const TOOL_RESULT = "sunny, 21 degrees";
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
      },
    },
  },
];

const client = new OpenAI({ defaultHeaders: { "x-agl-agent": process.env.AGENT_NAME } });
const messages = [{ role: "user", content: process.argv[2] }];
for (let turn = 0; turn < 5; turn++) {
  const answer = await client.chat.completions.create({
    model: process.env.MODEL,
    messages,
    tools,
  });
  const message = answer.choices[0].message;
  messages.push(message);
  if (!message.tool_calls) {
    console.log(message.content);
    break;
  }
  for (const call of message.tool_calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: TOOL_RESULT });
  }
}
