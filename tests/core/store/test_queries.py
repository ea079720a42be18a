from types import SimpleNamespace

from agl.store.queries import Filter, make_query, run_query


def record(n, **fields):
    return SimpleNamespace(n=n, **fields)


def numbers(page):
    return [one.n for one in page]


def test_ties_keep_the_order_of_creation_in_both_directions():
    records = [record(i, status=status) for i, status in enumerate("baba")]
    asc = make_query("rollouts", sort_by="status")
    desc = make_query("rollouts", sort_by="status", sort_order="desc")
    assert numbers(run_query(records, asc)) == [1, 3, 0, 2]
    assert numbers(run_query(records, desc)) == [0, 2, 1, 3]


def test_total_counts_before_paging():
    page = run_query([record(i) for i in range(9)], make_query("rollouts", limit=2, offset=5))
    assert (numbers(page), page.total) == ([5, 6], 9)


def test_index_is_used_only_when_every_match_must_have_it():
    status = Filter("status", "within", ("queuing",))
    both = [status, Filter("rollout_id", "within", ("ro-1",))]
    assert make_query("rollouts", both).filter_on("status") is not None
    assert make_query("rollouts", both, filter_logic="or").filter_on("status") is None
    one = make_query("rollouts", [status], filter_logic="or")
    assert one.filter_on("status") is not None
