"""Write ``swebench_samples.jsonl``: three small repositories, each with a bug and hidden tests.

    python make_samples.py

The fields are those of SWE-bench, but for ``files``, the repository itself, in the place of
``repo`` and ``base_commit``, and ``test_files`` in the place of ``test_patch``.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
TEST = """import unittest
{imports}

class Test(unittest.TestCase):
{methods}
"""


def instance(
    name: str, problem: str, files: dict[str, str], imports: str, fail: str, keep: str
) -> dict[str, Any]:
    """One line; ``fail`` and ``keep`` are a test's body each, before and after the mend."""
    methods = (
        f"    def test_fails(self):\n        {fail}\n\n    def test_passes(self):\n        {keep}"
    )
    module = f"test_{name.replace('-', '_')}"
    return {
        "instance_id": name,
        "problem_statement": problem,
        "files": files,
        "test_files": {f"{module}.py": TEST.format(imports=imports, methods=methods)},
        "FAIL_TO_PASS": [f"{module}.Test.test_fails"],
        "PASS_TO_PASS": [f"{module}.Test.test_passes"],
    }


SAMPLES = [
    instance(
        "calculator-1",
        "add(2, 3) gives -1. It should give 5.",
        {
            "calculator.py": "def add(a, b):\n    return a - b\n\n\n"
            "def double(a):\n    return 2 * a\n"
        },
        "from calculator import add, double\n",
        "self.assertEqual(add(2, 3), 5)",
        "self.assertEqual(double(4), 8)",
    ),
    instance(
        "words-1",
        "count_words('one  two') gives 3 where there are two spaces. It should give 2.",
        {
            "words/__init__.py": "from words.counting import count_words\n",
            "words/counting.py": "def count_words(text):\n    return len(text.split(' '))\n",
        },
        "from words import count_words\n",
        "self.assertEqual(count_words('one  two'), 2)",
        "self.assertEqual(count_words('one two three'), 3)",
    ),
    instance(
        "dates-1",
        "is_leap(1900) is True. Years that 100 divides are no leap years, unless 400 does.",
        {"dates.py": "def is_leap(year):\n    return year % 4 == 0\n"},
        "from dates import is_leap\n",
        "self.assertEqual([is_leap(1900), is_leap(2000)], [False, True])",
        "self.assertEqual([is_leap(2023), is_leap(2024)], [False, True])",
    ),
]

if __name__ == "__main__":
    text = "".join(json.dumps(sample) + "\n" for sample in SAMPLES)
    (FOLDER / "swebench_samples.jsonl").write_text(text, encoding="utf-8")
