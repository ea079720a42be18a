"""Containers of podman, also in a container: apt-get install podman runc catatonit."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = "bash cat chmod cp find id ls mkdir mv rm sh sleep stat tar test touch"
# No more open files than out here; and runc, as crun wants another kind of control groups.
CONTAINERS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=2000:2000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


@contextmanager
def podman():
    """Has podman keep everything in a folder, and takes it away again."""
    # Where its path is long, as with nox's TMPDIR, podman does not see that a container has ended.
    folder = Path(tempfile.mkdtemp(prefix="agl-podman-", dir="/tmp"))
    (folder / "containers.conf").write_text(CONTAINERS)
    places = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        yield
        subprocess.run(["podman", "system", "reset", "--force"], check=True, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def write_image(path, *added):
    """A file system with a shell, as a tar file; nothing is fetched from anywhere.

    Args:
        added: Further files and folders, as (where it is, where it shall be).
    """
    programs = [Path("/usr/bin") / name for name in PROGRAMS.split()]
    with tarfile.open(path, "w", dereference=True) as tar:
        for source, target in (*((one, one) for one in programs), *added):
            tar.add(source, target, filter=_without_caches)
        objects = [one for source, _ in added for one in Path(source).rglob("*.so*")]
        files = [source for source, _ in added if Path(source).is_file()]
        for library in _libraries([*programs, *objects, *files]):
            tar.add(library)
        for name in ("etc/passwd", "etc/group"):
            tar.add(f"/{name}")
        link = tarfile.TarInfo("bin")
        link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
        tar.addfile(link)


def write_image_of_python(path, packages, *modules):
    """The same with this Python, without its own packages; and with these, and some modules."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = Path(sys.base_prefix) / "bin" / version
    library = Path(sysconfig.get_path("stdlib"))
    left = re.compile("site-packages|test|ensurepip|idlelib|config-.*")
    entries = [one for one in library.iterdir() if not left.fullmatch(one.name)]
    site = library / "site-packages"
    inside = [(one, site / one.name) for one in (*Path(packages).iterdir(), *modules)]
    write_image(path, (python, python), *((one, one) for one in entries), *inside)
    return str(python)


def _without_caches(entry):
    return None if entry.name.endswith("__pycache__") else entry


def _libraries(files):
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
    return {word for word in said.split() if word.startswith("/") and os.path.isfile(word)} - {
        str(one) for one in files
    }
