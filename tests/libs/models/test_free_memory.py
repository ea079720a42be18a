"""Free memory is what the tightest of the machine, the container and the ulimit leaves."""

import resource
from pathlib import Path

import pytest

from agl_models.free_memory import free_memory

VERSION_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat")


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "cache"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (*VERSION_1, "total_inactive_file"),
    ],
)
def test_page_cache_of_a_container_counts_as_free(tmp_path, limit, usage, stat, cache):
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("1000\n")
    (tmp_path / usage).write_text("900\n")
    (tmp_path / stat).write_text(f"anon 300\nactive_file 50\n{cache} 550\n")
    assert free_memory(tmp_path) == 650
    (tmp_path / stat).write_text("anon 300\n")
    assert free_memory(tmp_path) == 100
    (tmp_path / stat).unlink()
    assert free_memory(tmp_path) == 100
    (tmp_path / usage).write_text("1600\n")
    assert free_memory(tmp_path) == 0
    for without in ("max\n", "9223372036854771712\n"):  # as versions 2 and 1 say it
        (tmp_path / limit).write_text(without)
        assert free_memory(tmp_path) > 10**6


def test_an_address_space_limit_counts(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**26, limits[1]))
    try:
        assert 2**25 < free_memory(tmp_path) <= 2**26
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
