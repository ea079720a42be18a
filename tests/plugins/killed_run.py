"""A whole run with a store on the disk, in a process that a test kills; it is said as JSON."""

import json
import sys

import agl

from .agents import capitals, says_red
from .azure.azure_server import Login


def main() -> None:
    """Run what the JSON says."""
    given = json.loads(sys.argv[1])
    options = given["options"]
    if given["type"] == "azure-sft":
        from agl_azure import AzureSFT

        algorithm, agent = AzureSFT(credential=Login(given["token"]), **options), capitals
    else:
        from transformers import AutoTokenizer

        from agl_tinker import Tinker

        tokenizer = AutoTokenizer.from_pretrained(given["tokenizer"])
        algorithm, agent = Tinker(tokenizer=tokenizer, **options), says_red
    trainer = agl.Trainer(
        algorithm=algorithm, store=agl.SqliteLightningStore(given["store"]), strategy="shm"
    )
    trainer.fit(agent, given["tasks"])


if __name__ == "__main__":
    main()
