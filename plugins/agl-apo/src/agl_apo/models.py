"""The models that criticise and edit prompts, behind an OpenAI-compatible address."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from agl.errors import AlgorithmError, ConfigError
from agl_apo.options import PromptOptions


class Models:
    """A client, and how it samples; calls are made within an ``async with`` block.

    The connections of a block belong to its event loop, so they are its own, and closed with it;
    only those of a client with an HTTP client that its user made are left as they are.

    Args:
        options: Has the client, or address and key of one of our own.
        temperature: Of every call.

    Raises:
        ConfigError: The client cannot be used, an address or a key was given beside it, or there is
            no key.
    """

    def __init__(self, options: PromptOptions, temperature: float) -> None:
        from openai import AsyncOpenAI, OpenAIError

        client, base_url, api_key = options.async_openai_client, options.base_url, options.api_key
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigError("give either a client, or base_url and api_key; both were given")
        if client is not None and not isinstance(client, AsyncOpenAI):
            raise ConfigError(
                f"the client must be an openai.AsyncOpenAI; got {type(client).__name__}"
            )
        try:
            self.client = client or AsyncOpenAI(base_url=base_url, api_key=api_key)
        except OpenAIError as error:
            raise ConfigError(
                f"no client for the models that edit prompts: {str(error).rstrip('.')}. Give "
                "api_key (and base_url), or set OPENAI_API_KEY"
            ) from None
        self.temperature = temperature
        self._settings = self.client

    async def __aenter__(self) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        # What a user gives is not of the class that openai makes where it is given none.
        made_by_openai = type(AsyncOpenAI(api_key="none")._client)
        if type(self._settings._client) is made_by_openai:
            self.client = self._settings.with_options(http_client=DefaultAsyncHttpxClient())

    async def __aexit__(self, *error: object) -> None:
        if self.client is not self._settings:
            await self.client.close()

    async def ask(self, model: str, prompt: str) -> dict[str, Any]:
        """The answer as ``text``, and ``tokens`` as the endpoint counts them.

        Raises:
            AlgorithmError: There is no text in the answer.
        """
        answer = await self.client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            temperature=self.temperature,
        )
        text = (answer.choices[0].message.content or "") if answer.choices else ""
        if not text.strip():
            raise AlgorithmError(f"model {model!r} returned nothing")
        tokens = answer.usage.total_tokens if answer.usage else 0
        return {"text": text.strip(), "tokens": tokens, "model": model}


def bare(text: str) -> str:
    """An edited prompt without what models put around it against their instructions."""
    fenced = re.fullmatch(r"\s*```[\w-]*\n(.*?)\n?```\s*", text, re.S)
    text = fenced.group(1) if fenced else text
    tagged = re.fullmatch(r"\s*<prompt>\n?(.*?)\n?</prompt>\s*", text, re.S)
    return tagged.group(1) if tagged else text


def read_templates(given: str | list[str] | None, default: str) -> list[str]:
    """The texts of a meta-prompt: our own, those of files, or as given.

    Args:
        given: Jinja texts, or paths of ``.j2``, ``.jinja`` or ``.jinja2`` files; None for ours.
        default: The name of ours.

    Raises:
        ConfigError: No such file, or Jinja cannot read it.
    """
    ours = str(Path(__file__).parent / "prompts" / f"{default}.j2")
    texts = given if isinstance(given, list) else [ours if given is None else given]
    return [_read(text, default) for text in texts]


def _read(text: str, default: str) -> str:
    from jinja2 import Environment, TemplateSyntaxError

    if "\n" not in text and text.endswith((".j2", ".jinja", ".jinja2")):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{default}_template: cannot be read: {error}") from None
    try:
        Environment().parse(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{default}_template, line {error.lineno}: {error.message}") from None
    return text


@cache
def _compiled(text: str) -> Any:
    from jinja2 import Environment, StrictUndefined

    return Environment(undefined=StrictUndefined, trim_blocks=True).from_string(text)


def fill(text: str, **values: Any) -> str:
    """Fill a meta-prompt.

    Raises:
        ConfigError: It asks for something that there is not.
    """
    from jinja2 import UndefinedError

    try:
        return _compiled(text).render(**values)
    except UndefinedError as error:
        raise ConfigError(
            f"a template for the models cannot be filled: {error}; there is "
            f"{', '.join(sorted(values))}"
        ) from None
