"""The candidates of a prompt run, each below the one that it came from."""

from agl_views.runs.prompt_runs import Candidate, PromptRun


def test_candidates_stand_below_their_parents_in_the_order_in_which_they_were_made():
    parents = {"seed": None, "a": "seed", "b": "seed", "a1": "a", "of one unknown": "gone"}
    candidates = {name: Candidate(name, parent) for name, parent in parents.items()}
    tree = PromptRun("run", "apo", candidates=candidates).tree()
    depths = [("seed", 0), ("a", 1), ("a1", 2), ("b", 1), ("of one unknown", 0)]
    assert [(one.name, depth) for one, depth in tree] == depths
