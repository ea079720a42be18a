"""``agl explain``: where the advantage of a token comes from."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from agl.cli.shared import print_json, read_and_close
from agl.store.base import LightningStore
from agl_inspect.figures import number
from agl_inspect.show.id_lookup import rollout_of
from agl_inspect.show.rollout import call_lines
from agl_runs.finding import find_code, placed
from agl_runs.store import get_run
from agl_views.explanations.explanation import Explanation, explain
from agl_views.explanations.token_explanation import explain_token
from agl_views.explanations.token_parts import TokenExplanation
from agl_views.explanations.trace_reader import refused_text
from agl_views.tables.file_store import FileStore
from agl_views.tables.stores import open_store, store_options

SHOWN = 5
"""Siblings whose rewards are named."""


@click.command("explain")
@click.argument("name", metavar="[ROLLOUT]", required=False)
@click.option("--row", type=click.IntRange(min=0), help="Only this row, from 0.")
@click.option(
    "--token", type=click.IntRange(min=0), help="Only this token of the row, from 0; needs --row."
)
@click.option("--call", help="The token of the answer of this call, in place of a row's.")
@click.option(
    "--again",
    is_flag=True,
    help="Compute what the token got once more, and compare; default: the first that was sampled.",
)
@click.option("--step", type=int, help="As this step of the algorithm saw it; default: the last.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    name: str | None,
    row: int | None,
    token: int | None,
    call: str | None,
    again: bool,
    step: int | None,
    path: Path | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show how ROLLOUT's rewards became advantages: reward, rule, group, advantage.

    ROLLOUT is an id, or the beginning of one; without it, the newest from which an update learned.

    What an algorithm did stands in its ledger. Without one, rows and credit are those of the
    adapter 'rows' with its defaults, and there are no advantages. Of a token it also shows the
    group with who was left out, and every change of its advantage as a term of a sum.
    """
    if token is not None and (row is None) == (call is None):
        raise click.UsageError("--token counts within a row, or an answer; give --row or --call")
    if token is None and call is not None and not again:
        raise click.UsageError("--call is about a token; give --token too")

    async def read(store: LightningStore) -> tuple[Explanation, TokenExplanation | None]:
        chain = await explain(store, await rollout_of(store, name, accounted=True), step)
        if again and chain.part is not None and chain.part.run is not None:
            run = await get_run(store, chain.part.run)
            if run is not None:  # an estimator may be code of its user
                find_code(placed(run, Path(store.path)) if isinstance(store, FileStore) else run)
        called, place = call, token or 0
        if again and token is None and call is None:  # the first token that was sampled
            rows = [one for one in chain.whole.rows if row in (None, one.number)]
            lines = (*(line for one in rows for line in one.calls), *chain.whole.excluded)
            called = next((line.call_id for line in lines), None)
        explanation = chain.whole if call is not None else chain.only(row, token)
        if (of := explanation.token) is not None:
            called, place = of.call_id, of.place
        if called is None or place is None:
            return explanation, None
        return explanation, await explain_token(store, chain, called, place, again=again)

    explanation, found = read_and_close(open_store(path, url), read)
    if as_json:
        print_json({**asdict(explanation), "why": found and asdict(found)})
        return
    lines = [*_chain_lines(explanation), *(_why_lines(found) if found is not None else ())]
    click.echo("\n".join(lines))


def _chain_lines(e: Explanation) -> Iterator[str]:
    mode = f", mode {e.mode}" if e.mode else ""
    account = "no ledger: as the adapter 'rows' would read it"
    if e.algorithm or e.step is not None:
        account = f"step {e.step} of {e.algorithm}"
    yield f"rollout    {e.rollout_id} ({e.status}{mode}); {account}"
    for one in e.rewards:
        at = f"span {one.span_id} (#{one.sequence_id} of attempt {one.attempt_id})"
        yield f"reward     {one.value:.4g} ({one.name}), {at}"
    if e.token is None:
        if e.refused:
            yield f"reward     {refused_text(e.refused)}"
        elif not e.rewards:
            yield "reward     none was given"
    if e.siblings:
        shown = [
            f"{rollout_id} {number(value, 'no reward')}"
            for rollout_id, value in list(e.siblings.items())[:SHOWN]
        ]
        more = f" and {len(e.siblings) - SHOWN} more" if len(e.siblings) > SHOWN else ""
        yield f"siblings   {', '.join(shown)}{more}"
    if e.excluded_rollout:
        yield f"excluded   the rollout, as {e.excluded_rollout}"
    for row in e.rows:
        agent = f" of agent {row.agent_name!r}" if row.agent_name else ""
        yield f"row {row.number}      {row.num_tokens} tokens{agent}"
        if row.began:
            yield f"           begins anew: {row.began}"
        if (token := e.token) is not None and token.sampled:
            yield (
                f"token {token.position}    id {token.token_id}, log-probability "
                f"{number(token.logprob, 'unknown')}, "
                f"token {token.place} of the answer of call {token.call_id}"
            )
        elif token is not None:
            yield (
                f"token {token.position}    id {token.token_id}: given to the model, not sampled "
                "by it; nothing is learned from it"
            )
        for call in row.calls:
            yield from call_lines(call)
    for call in e.excluded:
        yield from call_lines(call)


def _why_lines(found: TokenExplanation) -> Iterator[str]:
    for one in found.events:
        by = f" by {one.writer}" if one.writer else ""
        yield f"event      {one.value:.4g} ({one.name}){by}, span {one.span_id}"
    if found.group is not None:
        for one in found.group.members:
            out = "" if one.is_counted else f"; left out: {one.left_out}"
            yield f"member     {one.rollout_id} {number(one.credit, 'no credit')}{out}"
    total: float | None = 0.0
    for term in found.terms:
        total = None if total is None or term.value is None else total + term.value
        added = "unknown" if term.value is None else f"{term.value:+.6g}"
        value = added if term.factor is None else f"* {term.factor:.6g}"
        after = "" if total is None else f" = {total:.6g}"
        yield f"term       {term.name:<10} {value}{after}: {term.because}"
    if found.num_shared == 0:
        yield "mean       over the tokens of the call; each had its own, which is not kept"
    if found.num_shared > 1:
        yield f"shared     by all {found.num_shared} tokens of the answer"
    if found.num_calls > 1:
        yield f"shared     the reward, by {found.num_calls} calls of the attempt"
    of_bin = f": {found.bin.because}" if found.bin.because else ""
    lost = "; lost, the run went back behind its step" if found.bin.is_lost else ""
    yield f"bin        {found.bin.name}{of_bin}{lost}"
    if found.again is not None:
        for one in found.again.numbers:
            was, now = ("none" if n is None else f"{n:.6g}" for n in (one.before, one.now))
            end = "" if one.same else " DIFFERS"
            yield f"again      {one.what}: {was} in the ledger, {now} now{end}"
        if found.again.problem:
            yield f"again      {found.again.problem}"
