"""What every store must do, as a pytest class.

An author of a store writes one fixture and one class:

    import pytest_asyncio
    from agl_testing.store_contract import StoreContract

    @pytest_asyncio.fixture
    async def store(tmp_path):
        store = MyStore(tmp_path / "store", scan_interval_seconds=0.05)
        yield store
        await store.close()

    class TestMyStore(StoreContract):
        pass

The tests are coroutines and need pytest-asyncio, in any mode; ``pytest.fixture`` is enough for a
coroutine only where ``asyncio_mode`` is ``auto``. The fixture's store must look for overdue
attempts at least ten times a second, and starts empty.
"""

import pytest

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
):
    """Every claim of ``LightningStore``'s docstrings, as a test that takes a ``store`` fixture."""
