"""What every store must do, as a pytest class; see ``agl_testing.contract``.

A store that has the options ``path`` and ``scan_interval_seconds`` gets a file in a folder of the
test's, and 0.05. What another fixture ``store`` makes, with ``@pytest_asyncio.fixture`` if it is a
coroutine, is empty and looks for overdue attempts at least ten times a second.
"""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from agl.store.base import LightningStore
from agl_testing.contract import Contract
from agl_testing.store_data_contract import StoreDataContract
from agl_testing.store_documents_contract import StoreDocumentsContract
from agl_testing.store_queue_contract import StoreQueueContract
from agl_testing.store_spans_contract import StoreSpansContract
from agl_testing.store_status_contract import StoreStatusContract
from agl_testing.store_time_contract import StoreTimeContract


@pytest.mark.asyncio
class StoreContract(
    StoreQueueContract,
    StoreStatusContract,
    StoreTimeContract,
    StoreSpansContract,
    StoreDataContract,
    StoreDocumentsContract,
    Contract,
):
    """Every claim of ``LightningStore``'s docstrings, as a test that takes a ``store`` fixture."""

    kind = "store"
    expected_type = LightningStore

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncGenerator[LightningStore]:
        """The store to test, empty."""
        store = self.build(path=str(tmp_path / "agl.db"), scan_interval_seconds=0.05)
        yield store
        await store.close()
