"""Run a file as a script in which ``await`` may stand anywhere, as a page's code does."""

import ast
import asyncio
import inspect
import sys
from pathlib import Path

if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.path.insert(0, str(path.parent))
    code = compile(path.read_text(), str(path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    # In `__main__`, where a script's names are: what is pickled is looked for there.
    result = eval(code, globals())
    if inspect.iscoroutine(result):
        asyncio.run(result)
