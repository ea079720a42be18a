"""Functions as algorithms."""

from collections.abc import Awaitable, Callable
from typing import Any

from agl import FunctionalAlgorithm as FunctionalAlgorithm, algo as algo

AlgorithmFuncAsyncFull = Callable[..., Awaitable[None]]
AlgorithmFuncAsyncOnlyStore = Callable[..., Awaitable[None]]
AlgorithmFuncAsyncOnlyDataset = Callable[..., Awaitable[None]]
AlgorithmFuncAsyncFallback = Callable[..., Awaitable[Any]]
AlgorithmFuncSyncFull = Callable[..., None]
AlgorithmFuncSyncOnlyStore = Callable[..., None]
AlgorithmFuncSyncOnlyDataset = Callable[..., None]
AlgorithmFuncSyncFallback = Callable[..., Any]
