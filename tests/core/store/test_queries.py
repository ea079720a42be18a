async def sorted_inputs(store, **query):
    return [rollout.input for rollout in await store.query_rollouts(**query)]


async def test_ties_follow_the_order(memory_store):
    for number, mode in enumerate(("val", "train", "val", "train")):
        await memory_store.enqueue_rollout(number, mode=mode)
    assert await sorted_inputs(memory_store, sort_by="mode") == [1, 3, 0, 2]
    assert await sorted_inputs(memory_store, sort_by="mode", sort_order="desc") == [2, 0, 3, 1]


async def test_total_counts_before_paging(memory_store):
    for number in range(9):
        await memory_store.enqueue_rollout(number)
    page = await memory_store.query_rollouts(limit=2, offset=5)
    assert ([rollout.input for rollout in page], page.total) == ([5, 6], 9)
