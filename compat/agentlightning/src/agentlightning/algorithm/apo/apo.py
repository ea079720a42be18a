"""Prompt optimisation; needs agl-apo."""

from typing import TYPE_CHECKING, Any

from agentlightning._names import refusing, rest

if TYPE_CHECKING:
    from agl_apo import APO as APO

INSIDE = (
    "compute_textual_gradient",
    "evaluate_prompt_on_batch",
    "get_rollout_results",
    "get_seed_prompt_template",
    "textual_gradient_and_apply_edit",
)

_rest = rest(__name__)


def __getattr__(name: str) -> Any:
    if name != "APO":
        return _rest(name)
    import agl

    why = (
        "run() makes, tries and decides about prompts by itself; see docs/howto/optimise-prompts.md"
    )
    namespace = {"__module__": __name__, "__doc__": agl.APO.__doc__}
    made = refusing(**dict.fromkeys(INSIDE, why))(type("APO", (agl.APO,), namespace))
    globals()[name] = made
    return made
