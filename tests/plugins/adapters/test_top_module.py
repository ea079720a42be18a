import subprocess
import sys


def test_the_top_module_loads_nothing_heavy() -> None:
    code = (
        "import sys, agl_adapters; heavy = {'pydantic', 'opentelemetry', 'asyncio', 'agl.types'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
