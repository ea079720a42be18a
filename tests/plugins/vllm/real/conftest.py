"""What ``transformers`` says of the weights that the real vLLM serves."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ARGUMENTS = ["--enforce-eager", "--max-num-seqs", "16", "--max-model-len", "1024"]


class Weights:
    """A model in training: a server gets its weights as they are, and we compute with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def write(self, folder: Path) -> None:
        """As a trainer does, with the settings that makers of models leave beside their weights."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        self.model.save_pretrained(folder)
        settings = json.loads((folder / "generation_config.json").read_text())
        settings |= {"do_sample": True, "top_k": 2, "top_p": 0.5, "repetition_penalty": 1.5}
        (folder / "generation_config.json").write_text(json.dumps(settings))

    @torch.no_grad()
    def change(self, part: str, size: float) -> None:
        """Add noise to the matrices with this in their names."""
        for name, one in self.model.named_parameters():
            if part in name:
                one += size * torch.randn(one.shape)

    @torch.no_grad()
    def logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Where each token of the answer is drawn from: [T, V]."""
        return self.model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]

    def logprobs(self, prompt: list[int], answer: list[int], temperature: float = 1.0):
        """Of each token of the answer."""
        scaled = self.logits(prompt, answer).double() / temperature
        return scaled.log_softmax(-1)[range(len(answer)), answer]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A chat model of 135 million parameters."""
    from agl_testing.models import smollm2

    return smollm2()


@pytest.fixture
def weights(smollm2: Path) -> Weights:
    torch.manual_seed(0)
    return Weights(smollm2)
