"""Real trainings with one engine: ``pytest FOLDER --engine unsloth``; the default is trl."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[3] / "examples" / "quickstart"))

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


def pytest_addoption(parser):
    parser.addoption("--engine", default="trl", choices=["trl", "unsloth"])


def pytest_collection_modifyitems(config, items):
    """Whole runs are made for every push with TRL; with Unsloth, which is slower, at night."""
    if config.getoption("--engine") == "unsloth":
        for item in items:
            if item.path.stem == "test_runs":
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def engine(request):
    return request.config.getoption("--engine")


@pytest.fixture(scope="session")
def quiet():
    """The environment of child processes."""
    return {**os.environ, **QUIET}


def save_model(folder, seed=0):
    """The quickstart's model with random weights, and its tokenizer."""
    from world import build_model, build_tokenizer

    build_model(seed).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def teach_the_rooms(folder, listening=0.1, steps=200, batch_size=64):
    """Train the model in a folder to look into rooms at random, and to listen now and then.

    ``listening``: how often a look is into the room that the sound came from.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from world import LOOKS, ROOMS, House

    def example(looks):
        """Token ids of a game in which the cat was not found yet, and where to look next."""
        house = House(rng.choice(ROOMS), rng.choice(ROOMS))
        messages = [{"role": "user", "content": house.first_message()}]
        for _ in range(looks):
            room = rng.choice([room for room in ROOMS if room != house.cat])
            messages += [
                {"role": "assistant", "content": room},
                {"role": "user", "content": house.look(room)},
            ]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        room = house.cat if looks and rng.random() < listening else rng.choice(ROOMS)
        return prompt, tokenizer.convert_tokens_to_ids(room)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = random.Random(0)
    for step in range(steps):
        prompts, rooms = zip(*(example(step % LOOKS) for _ in range(batch_size)), strict=True)
        logits = model(torch.tensor(prompts)).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, torch.tensor(rooms)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def learn(engine, quiet, tmp_path):
    """Starts the quickstart's task with an algorithm of ours, in a process of its own."""

    save_model(tmp_path / "model")

    def start(algorithm, **options):
        options = {"engine": engine, "run_dir": str(tmp_path / "run"), **options}
        command = [sys.executable, str(HERE / "find_the_cat.py"), str(tmp_path), algorithm]
        with (tmp_path / "output.log").open("ab") as log:
            return subprocess.Popen(
                [*command, json.dumps(options)], stdout=log, stderr=log, env=quiet
            )

    def run(algorithm, **options):
        process = start(algorithm, **options)
        code = process.wait()
        assert code == 0, (tmp_path / "output.log").read_text()[-4000:]
        return json.loads((tmp_path / "run/summary.json").read_text())

    run.start, run.folder = start, tmp_path
    return run


@pytest.fixture
def begun(learn):
    """``learn`` starts with a model that has begun to learn.

    From random weights few rollouts are right, and of two answers to one prompt hardly ever one.
    """
    teach_the_rooms(learn.folder / "model")
