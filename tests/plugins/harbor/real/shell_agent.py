"""An agent of Harbor's that runs in its sandbox what the model says."""

from harbor.agents.agent_auth_resolution import ModelConnectionSpec
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.models.model_api_format import ModelApiFormat
from openai import AsyncOpenAI


class ShellAgent(BaseAgent):
    capabilities = AgentCapabilities(base_url=True)
    MODEL_CONNECTION = ModelConnectionSpec(
        supported_api_formats=[ModelApiFormat.OPENAI_CHAT_COMPLETIONS]
    )

    @staticmethod
    def name():
        return "shell"

    def version(self):
        return "1"

    async def setup(self, environment):
        if (missing := self.extra_env.get("NEEDS")) is not None:
            raise RuntimeError(f"{missing} cannot be installed")

    async def run(self, instruction, environment, context):
        url, key = self._base_url, self.extra_env["OPENAI_API_KEY"]
        async with AsyncOpenAI(base_url=url, api_key=key) as client:
            model = self.model_name.removeprefix("openai/")
            messages = [{"role": "user", "content": instruction}]
            answer = await client.chat.completions.create(model=model, messages=messages)
        done = await environment.exec(answer.choices[0].message.content)
        if done.return_code != 0:
            raise RuntimeError(f"exit code {done.return_code}")
