"""What tells the code of a run's user from other code."""

import ast
import gc
import threading
import time
from pathlib import Path

from agl_runs.user_code import digest_of

SCRIPT = """
import agl

def agent(task): return 1.0

trainer = agl.Trainer(algorithm="grpo", run="sums")
trainer.fit(agent, [1, 2])
"""


def test_a_script_that_only_asks_to_go_on_is_the_script_that_it_was(tmp_path):
    def digest(text, file=tmp_path / "script.py"):
        file.write_text(text)
        return digest_of(file)

    before = digest(SCRIPT)
    again = SCRIPT.replace('run="sums"', '\n    run="sums",\n    resume=True, force=True,\n')
    assert digest(f"# Go on.{again}") == before
    assert digest(SCRIPT.replace("1.0", "2.0")) != before
    assert digest(SCRIPT.replace('run="sums"', 'run="sums", steps=3')) != before
    assert digest(f"{SCRIPT}(") != digest(f"{SCRIPT}((")  # no Python


def test_code_is_parsed_while_another_thread_parses():
    class LetsOthersRun:
        """As it is collected another thread goes on, and the next one waits to be collected."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            time.sleep(0.0005)
            LetsOthersRun()

    stopped = threading.Event()

    def parse() -> None:  # as the log of an error does, in Python 3.11
        while not stopped.is_set():
            ast.parse("x = a.b(c)[d] + 1")
            time.sleep(0)

    other, thresholds = threading.Thread(target=parse), gc.get_threshold()
    other.start()
    LetsOthersRun()
    gc.set_threshold(50, 1, 1)
    try:
        assert len({digest_of(Path(__file__)) for _ in range(5)}) == 1
    finally:
        gc.set_threshold(*thresholds)
        del LetsOthersRun.__del__  # for good: the last one is collected in another test
        stopped.set()
        other.join()
    assert gc.isenabled()
