"""CrewAI."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from scene import AGENT, KEY, QUESTION, get_weather


async def crewai_crew(base_url: str) -> str:
    llm = LLM(model="openai/echo", base_url=base_url, api_key=KEY)
    agent = Agent(
        role=AGENT,
        goal="Answer questions about the weather.",
        backstory="You look before you speak.",
        llm=llm,
        tools=[tool("get_weather")(get_weather)],
    )
    task = Task(description=QUESTION, expected_output="One sentence.", agent=agent)
    return str(await Crew(agents=[agent], tasks=[task]).kickoff_async())
