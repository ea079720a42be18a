"""LangSmith's SDK, and others that have what was asked and answered under one key each."""

from agl_tracers.dialects.keyed import KeyedDialect


class LangSmith(KeyedDialect):
    """``gen_ai.prompt`` and ``gen_ai.completion``: LangSmith's JSON, or plain text."""

    request = "gen_ai.prompt"
    answer = "gen_ai.completion"
