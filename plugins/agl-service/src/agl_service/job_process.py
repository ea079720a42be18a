"""The process of a job: a command of agl that ends with the training server."""

import sys

from agl.cli import main
from agl_processes.tree import start_group
from agl_sqlite.lockfile import LockFile

if __name__ == "__main__":
    start_group(int(sys.argv[1]))
    lock = LockFile(sys.argv[2])
    main(sys.argv[3:])
