"""Keys and values of many sequences side by side: each has a slot, and may leave it there.

The first slots are those of the sequences that are being sampled, so that a batch is a view and not
a copy. The others keep sequences that have ended: the next question of a conversation begins with
the tokens of the one before, and what it shares with any slot is not computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from transformers.cache_utils import Cache, CacheLayerMixin

from agl_records.row_builder import common_length

if TYPE_CHECKING:
    from torch import Tensor

WIDTH_STEP = 64
"""Slots grow by so many tokens at least."""


@dataclass(eq=False)
class Slot:
    """One sequence."""

    tokens: list[int] = field(default_factory=list[int])
    held: int = 0
    """Of how many of its tokens keys and values are there."""
    used: int = 0
    """When it was last taken, as a count."""


@dataclass(frozen=True)
class Place:
    """Where one forward pass writes and reads."""

    rows: slice
    """Of the slots."""
    row_B_1: "Tensor"
    column_B_Q: "Tensor"
    width: int
    """Columns that it reads."""


class _Layer(CacheLayerMixin):
    """One layer of ``Slots``: tensors of slots x heads x width x dimensions."""

    is_sliding = False

    def __init__(self, slots: "Slots") -> None:
        super().__init__()
        self._slots = slots

    def lazy_initialization(self, key_states: "Tensor", value_states: "Tensor") -> None:
        """Make room for all slots."""
        size = (self._slots.num_rows, self._slots.width)
        self.keys, self.values = (
            states.new_zeros(size[0], states.shape[1], size[1], states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: "Tensor", value_states: "Tensor", *args: Any, **kwargs: Any
    ) -> tuple["Tensor", "Tensor"]:
        """Write what is new; returns all that is there."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = self._slots.place
        assert self.keys is not None
        assert self.values is not None
        for whole, states in ((self.keys, key_states), (self.values, value_states)):
            whole[place.row_B_1, :, place.column_B_Q] = states.transpose(1, 2)
        seen = (place.rows, slice(None), slice(place.width))
        return self.keys[seen], self.values[seen]

    def resize(self, rows: int, width: int) -> None:
        """Keep what fits."""
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(rows, old.shape[1], width, old.shape[3])
            kept = (slice(min(rows, len(old))), slice(None), slice(min(width, old.shape[2])))
            new[kept] = old[kept]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Nobody asks: masks are given."""
        return self._slots.place.width, 0

    def get_seq_length(self) -> int:
        """Nobody asks: positions are given."""
        return 0

    def get_max_length(self) -> int:
        """No limit: slots grow."""
        return -1


class Slots:
    """See the module.

    Args:
        max_rows: Sequences sampled at once at most, and slots kept.
        keep_bytes: Memory up to which ended sequences are kept; 0 shares nothing.
    """

    def __init__(self, max_rows: int, keep_bytes: int) -> None:
        self.keeps = keep_bytes > 0
        self.place: Place
        """Of the forward pass in progress."""
        self._max_rows = max_rows
        self._keep_bytes = keep_bytes
        self.forget()

    def forget(self) -> None:
        """Let go of everything: the weights change, or memory is needed."""
        self.all: list[Slot] = []
        self.num_rows, self.width, self._clock = 0, 0, 0
        self.cache = Cache(layer_class_to_replicate=cast(Any, partial(_Layer, self)))

    def rest(self) -> None:
        """Nothing is sampled: more memory than what may be kept is let go of."""
        if self._num_bytes > self._keep_bytes:
            self.forget()

    @property
    def _num_bytes(self) -> int:
        return sum(tensor.nbytes for layer in self.cache.layers for tensor in _tensors(layer))

    def take(self, number: int, prompt: Sequence[int]) -> Slot:
        """Make slot ``number`` that of a prompt, with whatever of it is there already.

        Args:
            number: How many slots are taken: the first ones.
            prompt: Its last token is not looked for, as its logits are needed.
        """
        shared = [common_length(slot.tokens[: slot.held], prompt[:-1]) for slot in self.all]
        source = max(range(len(shared)), key=lambda n: (shared[n], n), default=0)
        length = shared[source] if shared and self.keeps else 0
        goes_on = source >= number and length > 0 and length == self.all[source].held
        target = source if goes_on else self._spare(number)
        if length and target != source:
            for layer in self.cache.layers:
                for tensor in _tensors(layer):
                    tensor[target, :, :length] = tensor[source, :, :length]
        self._clock += 1
        self.all[target] = Slot(list(prompt), length, self._clock)
        self.swap(target, number)
        return self.all[number]

    def _spare(self, number: int) -> int:
        """An empty slot, a new one where memory allows, or that which was not used for longest."""
        count = len(self.all)
        free = min(range(number, count), key=lambda n: self.all[n].used, default=None)
        if free is not None and not self.all[free].held:
            return free
        per_row = self._num_bytes // max(self.num_rows, 1)
        affords = count < self._max_rows and (count + 1) * per_row <= self._keep_bytes
        if free is not None and not affords:
            return free
        self.all.append(Slot())
        if count == self.num_rows:
            doubled = min(2 * count, self._max_rows)
            self._resize(max(doubled * (doubled * per_row <= self._keep_bytes), count + 1))
        return count

    def swap(self, one: int, other: int) -> None:
        """Let two slots change places."""
        if one == other:
            return
        length = max(self.all[one].held, self.all[other].held)
        if length:
            for layer in self.cache.layers:
                for tensor in _tensors(layer):
                    kept = tensor[one, :, :length].clone()
                    tensor[one, :, :length] = tensor[other, :, :length]
                    tensor[other, :, :length] = kept
        self.all[one], self.all[other] = self.all[other], self.all[one]

    def reserve(self, number: int, width: int) -> None:
        """Have room for sequences of ``width`` tokens, the first ``number`` slots being taken."""
        if width < self.width:  # the last column takes what padding writes
            return
        wider = max(width + 1, self.width * 3 // 2)
        wider += -wider % WIDTH_STEP
        if self._num_bytes * wider > self._keep_bytes * max(self.width, 1):
            del self.all[number:]
        self._resize(len(self.all), wider)

    def _resize(self, rows: int, width: int | None = None) -> None:
        self.num_rows, self.width = rows, width or self.width
        for layer in cast("list[_Layer]", self.cache.layers):
            layer.resize(rows, self.width)


def _tensors(layer: Any) -> "list[Tensor]":
    return [layer.keys, layer.values] if layer.is_initialized else []
