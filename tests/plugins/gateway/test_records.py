"""What the record of a call says: its times, its choices, its end."""

from agl.semconv import ModelCallAttributes as Key


async def test_times_versions_and_usage_are_in_the_record(bench) -> None:
    bench.llm.latency_seconds = 0.05
    await bench.post(bench.ask(stream=True, stream_options={"include_usage": True}))
    await bench.post(bench.ask())
    streamed, whole = (span.attributes for span in await bench.spans())
    assert streamed[Key.TIME_TO_FIRST_TOKEN] > 0.05
    assert streamed[Key.LATENCY] > streamed[Key.TIME_TO_FIRST_TOKEN] + 0.1
    assert Key.TIME_TO_FIRST_TOKEN not in whole
    assert whole[Key.LATENCY] > 0.05
    assert streamed[Key.OUTPUT_TOKENS] == whole[Key.OUTPUT_TOKENS] == 4


async def test_a_form_that_holds_an_answer_is_in_its_record(bench) -> None:
    free = ({}, {"response_format": {"type": "text"}}, {"tool_choice": "auto"})
    held = ({"response_format": {"type": "json_object"}}, {"tool_choice": "required"})
    for asked in (*free, *held, {"guided_regex": "a"}):
        await bench.post(bench.ask(**asked))
    found = [span.attributes.get("gen_ai.output.type") for span in await bench.spans()]
    assert found == [None] * 3 + ["json"] * 3


async def test_the_other_choices_have_token_ids_of_their_own(bench) -> None:
    for stream in (False, True):
        await bench.post(bench.ask(n=3, stream=stream))
    for span in await bench.spans():
        attributes = span.attributes
        for index in (1, 2):
            choice = f"{Key.CHOICE}.{index}"
            assert attributes[f"{choice}.token_ids"] == attributes[Key.RESPONSE_TOKEN_IDS]
            assert attributes[f"{choice}.logprobs"] == attributes[Key.RESPONSE_LOGPROBS]
        assert f"{Key.CHOICE}.3.token_ids" not in attributes


async def test_a_done_event_that_is_cut_in_two_still_ends_the_record_in_time(bench) -> None:
    from agl_gateway.asgi import Reply
    from agl_gateway.dialect import Exchange
    from agl_gateway.forward import relay
    from agl_gateway.records import CallRecord, Origin

    stream = (
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )

    class Answer:
        status, headers = 200, {"content-type": "text/event-stream"}

        def __init__(self, cut: int) -> None:
            self.pieces = (stream[:cut], stream[cut:])

        async def chunks(self):
            for piece in self.pieces:
                yield piece

    for cut in range(1, len(stream)):
        events: list[str] = []

        async def send(message: dict, events: list[str] = events) -> None:
            if b"[DONE]" in message.get("body", b""):
                events.append("sent")

        record = CallRecord(Origin("ro", "at"))
        exchange = Exchange(b"{}", {})
        exchange.body_for("m", ("return_token_ids",))
        await relay(
            Answer(cut), exchange, record, Reply(send), lambda _, e=events: e.append("end"), bytes
        )
        assert events == ["end", "sent"], cut
