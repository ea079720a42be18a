"""A house with a cat in it, and a language model small enough to learn it on a laptop.

The agent is told in which room it stands, and may look into three rooms. When the cat is not there
it hears what goes on where the cat is: creaking, if that is the attic. Nobody tells the model which
sound belongs to which room, or even which words are rooms. It can only find out.
"""

import itertools
from dataclasses import dataclass
from typing import Any

SOUNDS = {
    "hall": "ticking",
    "kitchen": "sizzling",
    "bathroom": "dripping",
    "library": "rustling",
    "nursery": "giggling",
    "cellar": "rumbling",
    "attic": "creaking",
    "garden": "chirping",
}
ROOMS = list(SOUNDS)
LOOKS = 3

Task = dict[str, str]
"""``start``: where the agent stands; ``cat``: where the cat is, which the agent is not told."""


@dataclass
class House:
    """One game. ``look`` is the only thing that an agent can do."""

    start: str
    cat: str
    looks_left: int = LOOKS
    found: bool = False

    def first_message(self) -> str:
        """What the agent knows at the beginning: nothing about the cat."""
        return f"you are in the {self.start} find the cat"

    def look(self, room: str) -> str:
        """Look into a room; any other word is a look into nowhere."""
        self.looks_left -= 1
        self.found = room == self.cat
        return "there it is" if self.found else f"no cat you hear {SOUNDS[self.cat]}"

    @property
    def is_over(self) -> bool:
        """Found, or out of looks."""
        return self.found or self.looks_left == 0

    @property
    def reward(self) -> float:
        """1 for the cat, 0 for none."""
        return float(self.found)


def all_tasks() -> list[Task]:
    """Every start with every place for the cat."""
    return [{"start": start, "cat": cat} for start in ROOMS for cat in ROOMS]


def split_tasks() -> tuple[list[Task], list[Task]]:
    """Training tasks, and 16 held-out ones that training never draws.

    For each start two places of the cat are held out, so that each room is held out twice as start
    and twice as hiding place.
    """
    train: list[Task] = []
    held_out: list[Task] = []
    for task in all_tasks():
        distance = (ROOMS.index(task["cat"]) - ROOMS.index(task["start"])) % len(ROOMS)
        (held_out if distance in (3, 5) else train).append(task)
    return train, held_out


def best_blind_reward() -> float:
    """Reward of the best plan that does not listen, found by trying all of them.

    A blind plan may know the first message, but not what the house says afterwards: for every
    start it is one fixed sequence of looks.
    """
    total = 0.0
    for start in ROOMS:
        wins: list[int] = []
        for plan in itertools.product(ROOMS, repeat=LOOKS):
            houses = [House(start, cat) for cat in ROOMS]
            for house in houses:
                for room in plan:
                    if not house.is_over:
                        house.look(room)
            wins.append(sum(house.found for house in houses))
        total += max(wins) / len(ROOMS)
    return total / len(ROOMS)


WORDS = [
    *("<user>", "<assistant>", "<end>"),
    *"you are in the find cat no hear there it is".split(),
    *ROOMS,
    *SOUNDS.values(),
]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<{{ message['role'] }}> {{ message['content'] }} <end> "
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
"""Never glues words together: a conversation's tokens always begin with its earlier tokens."""


def build_tokenizer() -> Any:
    """One token per word. Roles are words like any other: what is sampled reads back the same."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE)


def build_model(seed: int) -> Any:
    """A transformer of two layers with random weights: it knows nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)
