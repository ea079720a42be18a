"""What tells the code of a run's user from other code."""

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
