"""What is said about installed versions, and about the place where Ray is to work."""

import pytest

from agl.errors import ConfigError, install_line
from agl_verl.preflight import check_temporary_folder
from agl_verl.versions import WANTED, check_versions, conflicts

NEWEST = {"verl": "0.9.1", "torch": "2.13.0", "ray": "2.60.0", "transformers": "5.9.0"}
NEWEST |= {"tensordict": "0.10.0", "TransferQueue": "0.1.11"}
GOOD = dict.fromkeys(WANTED, "1") | NEWEST


def test_a_tested_set_passes():
    check_versions(GOOD)


def test_all_that_is_wrong_is_named_with_what_was_wanted_and_what_to_run():
    with pytest.raises(ConfigError) as caught:
        check_versions(GOOD | {"verl": "0.8.0", "cachetools": None, "transformers": "5.6.0"})
    text = str(caught.value)
    assert "verl 0.8.0, wanted >=0.9.0,<0.10" in text
    assert "cachetools is not installed, wanted any version" in text
    assert "transformers 5.6.0, wanted >=5.5.3,<5.11,!=5.6.0" in text
    assert install_line("agl-verl[backend]") in text
    assert "tensordict" not in text


def test_a_missing_torch_is_to_be_installed_first():
    with pytest.raises(ConfigError, match="torch first"):
        check_versions(GOOD | {"torch": None})


def install(folder, name, version, *requirements):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requirements)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")


def test_packages_that_do_not_fit_each_other_are_named(tmp_path, monkeypatch):
    install(tmp_path, "trainer", "1.0", "cluster[web]>=2", "absent", 'x>9; python_version < "3"')
    install(tmp_path, "cluster", "2.1", 'buffers>=6; extra == "web"', 'x>9; extra == "other"')
    install(tmp_path, "buffers", "5.29", "trainer")
    monkeypatch.syspath_prepend(tmp_path)
    assert conflicts(["trainer"]) == [
        "cluster 2.1 needs buffers>=6, and 5.29 is installed",
        "trainer 1.0 needs absent, and none is installed",
    ]
    assert conflicts(["buffers", "not-here"]) == conflicts(["trainer"])


def test_the_tested_set_fits():
    pytest.importorskip("verl")
    assert conflicts() == []


def test_a_temporary_folder_in_the_environment_is_refused():
    inside = {"VIRTUAL_ENV": "/envs/a", "TMPDIR": "/envs/a/tmp"}
    with pytest.raises(ConfigError, match=r"TMPDIR is '/envs/a/tmp'.*Set RAY_TMPDIR"):
        check_temporary_folder(inside)
    check_temporary_folder(inside | {"RAY_TMPDIR": "/scratch"})  # which Ray takes first
    check_temporary_folder({"TMPDIR": "/envs/a/tmp"})
    check_temporary_folder({"VIRTUAL_ENV": "/envs/a", "TMPDIR": "/envs/ab"})
    check_temporary_folder({})
