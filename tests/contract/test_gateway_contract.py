"""The gateway contract over ours, and gateways that break it."""

import asyncio

import pytest
from aiohttp import ClientError

from agl_testing.gateway_contract import GatewayContract, serving

pytest.importorskip("agl_gateway")

from agl_gateway import LLMProxy

pytestmark = pytest.mark.plugins


class TestGateways(GatewayContract):
    @pytest.fixture(params=["with a key", "open"])
    def gateway(self, request):
        return LLMProxy(open=request.param == "open")


async def nothing(self, *args, **options):
    pass


def without(*methods):
    return type("Without", (LLMProxy,), dict.fromkeys(methods, nothing))()


class ReplacesAdded(LLMProxy):
    def add_model(self, entry):
        self.remove_model(entry["model_name"])
        super().add_model(entry)


class KeepsRemoved(LLMProxy):
    def remove_model(self, model_name):
        pass


class ForgetsAdded(LLMProxy):
    def update_model_list(self, model_list):
        for name in self.model_names:
            self.remove_model(name)
        super().update_model_list(model_list)


class Moves(LLMProxy):
    async def restart(self):
        await self.stop()
        self.address.port = 0
        await self.start()


class GivesTheBareAddress(LLMProxy):
    def as_resource(self, rollout_id=None, attempt_id=None, model=None, sampling_parameters=None):
        return super().as_resource(model=model, sampling_parameters=sampling_parameters)


class ForcesNothing(LLMProxy):
    def update_model_list(self, model_list):
        super().update_model_list([{**m, "forced_parameters": {}} for m in model_list])


@pytest.mark.parametrize(
    ("claim", "broken"),
    [
        ("call_is_answered_and_recorded_with_its_tokens", lambda: LLMProxy(callbacks=["logprobs"])),
        (
            "stream_is_passed_on_and_recorded_as_the_same_call",
            lambda: LLMProxy(callbacks=["return_token_ids"]),
        ),
        ("forced_parameters_hold_whatever_the_agent_says", ForcesNothing),
        ("calls_at_once_belong_to_attempts_that_made_them", lambda: without("flush")),
        ("calls_at_once_belong_to_attempts_that_made_them", GivesTheBareAddress),
        ("resource_is_a_proxy_with_addresses_of_attempts", GivesTheBareAddress),
        ("new_list_holds_at_the_next_call_and_added_stay", ForgetsAdded),
        ("name_that_is_served_is_refused_and_nothing_changes", ReplacesAdded),
        ("removed_model_is_served_no_more", KeepsRemoved),
        ("paused_model_waits_and_others_do_not", lambda: without("pause")),
        ("paused_model_waits_and_others_do_not", lambda: without("resume")),
        ("pause_that_refuses_says_when_to_come_back", lambda: without("pause")),
        ("drained_gateway_has_no_call_in_flight", lambda: without("drain")),
        ("restart_serves_at_the_same_address", Moves),
    ],
)
async def test_a_gateway_that_breaks_a_claim_is_caught(claim, broken, memory_store, echo_llm):
    async with serving(broken(), memory_store, echo_llm) as served:
        with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception, ClientError)):
            async with asyncio.timeout(5):
                await getattr(GatewayContract(), f"test_{claim}")(served)
