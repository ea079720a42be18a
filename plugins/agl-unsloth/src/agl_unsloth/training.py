"""One training, in a process of its own: ``python -m agl_unsloth.training ORDER.json``.

Memory, of a GPU too, returns with the end of the process. Beside the weights it leaves
``RESULT`` in the folder that it was told: what was learned, as numbers. Of agl, only
agl-models is imported, so that it may run in an environment of its own (see the option ``python``).
"""

import json
import logging
import os
import sys
import time
from importlib import metadata
from pathlib import Path

from agl_unsloth.options import Order, TrainingOptions

RESULT = "training.json"
"""In ``Order.out``: the metrics of the training."""


def main(arguments: list[str]) -> None:
    """Train what the order says."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    given = json.loads(Path(arguments[0]).read_text())
    order = Order(**{**given, "options": TrainingOptions(**given["options"])})
    libraries = ["trl", "transformers"]
    if order.engine == "unsloth":
        # Before anything of transformers or TRL is imported: it changes both.
        from agl_unsloth.engine_unsloth import train

        libraries = ["unsloth", *libraries]
    else:
        from agl_unsloth.engine_trl import train
    Path(order.out).mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with open(order.examples) as lines:
        metrics = train(order, [json.loads(line) for line in lines])
    metrics["seconds"] = time.perf_counter() - start
    metrics["engine"] = ", ".join(f"{name} {metadata.version(name)}" for name in libraries)
    (Path(order.out) / RESULT).write_text(json.dumps(metrics, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
