"""Measure a model as a player of twenty questions; results are appended to a file.

    python q20_evaluate.py --model gpt-4.1 --search \
        --output-file logs/twenty_questions_results.jsonl

The player is the model at ``OPENAI_BASE_URL`` (or ``--base-url``, for example a bridge, a gateway
or vLLM), the helper that of ``HELPER_MODEL`` at ``OPENAI_BASE_URL``.
"""

import argparse
import asyncio
import json
from pathlib import Path

from openai import AsyncOpenAI
from q20_agent import Model, helper_model, load_nouns, play


async def evaluate(player: Model, out: Path, *, search: bool, games: int | None) -> float:
    """Play all nouns of the test split; returns the share of games that were won."""
    helper, won, nouns = helper_model(), 0, load_nouns("test")[:games]
    out.parent.mkdir(parents=True, exist_ok=True)
    for noun in nouns:
        game = await play(noun, player, helper, search=search)
        won += game.solved
        result = {
            "model": player.name,
            **noun,
            "solved": game.solved,
            "turns": game.turns,
            "reward": game.reward,
        }
        with out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")
    return won / len(nouns)


def main() -> None:
    """Play, and say how many games were won."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="gpt-4.1-mini")
    parser.add_argument("--base-url", help="of the player; default: that of the helper")
    parser.add_argument(
        "--output-file", type=Path, default=Path("logs/twenty_questions_results.jsonl")
    )
    parser.add_argument("--search", action="store_true", help="the player may search")
    parser.add_argument("--games", type=int, help="so many; default: all ten")
    options = parser.parse_args()
    client = AsyncOpenAI(base_url=options.base_url) if options.base_url else helper_model().client
    player = Model(client, options.model)
    won = asyncio.run(
        evaluate(player, options.output_file, search=options.search, games=options.games)
    )
    print(f"{won:.0%} of the games were won; see {options.output_file}")


if __name__ == "__main__":
    main()
