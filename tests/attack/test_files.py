"""What other users of a machine leave in the folder of a store does nothing."""

import os
from pathlib import Path

import pytest

from agl.errors import StoreUnavailableError
from agl.store.sqlite import SqliteLightningStore


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system cannot refuse links")
def test_a_link_in_the_place_of_the_lock_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "agl.db.lock").symlink_to(precious)
    with pytest.raises(StoreUnavailableError, match=r"agl\.db\.lock"):
        SqliteLightningStore(str(tmp_path / "agl.db"))
    assert precious.read_text() == "kept"
