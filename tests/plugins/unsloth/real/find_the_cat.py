"""The quickstart's agent, trained by ``sft`` or ``dpo``: ``find_the_cat.py FOLDER NAME OPTIONS``.

FOLDER has the model in ``model`` and gets the store; OPTIONS is JSON.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "examples" / "quickstart"))

from quickstart import find_the_cat
from world import split_tasks

import agl
from agl.plugins.registry import load


def main(folder: Path, name: str, options: dict) -> None:
    """Train to the end."""
    train, held_out = split_tasks()
    fast = {
        "server": {"type": "torch", "arguments": ["--threads", "1"]},
        "torch_threads": 1,
        "lora": None,
        "max_tokens": 1,
        "evaluation": {"temperature": 0.5, "copies": 2},
    }
    algorithm = load("agl.algorithms", name)(str(folder / "model"), **{**fast, **options})
    trainer = agl.Trainer(
        algorithm=algorithm,
        store=agl.SqliteLightningStore(folder / "store.db"),
        strategy={"type": "cs", "server_port": 0},
        n_runners=2,
    )
    trainer.fit(find_the_cat, train, val_dataset=held_out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
