"""Prompt optimisation; needs agl-apo."""

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any

from agentlightning._names import refusing, rest

if TYPE_CHECKING:
    from agl_apo import APO as APO

INSIDE = {
    "run() makes, tries and decides about prompts by itself; see docs/howto/optimise-prompts.md": (
        "compute_textual_gradient evaluate_prompt_on_batch get_rollout_results "
        "get_seed_prompt_template textual_gradient_and_apply_edit"
    )
}

_rest = rest(__name__)


def __getattr__(name: str) -> Any:
    if name != "APO":
        return _rest(name)
    import agl

    @functools.wraps(agl.APO.__init__)
    def __init__(self: Any, *args: Any, _poml_trace: bool = False, **options: Any) -> None:
        if _poml_trace:
            logging.getLogger("agl.compat").warning(
                "APO(_poml_trace=True) has no effect: each call to the optimizing models is a span "
                "of the run; see agl prompts and agl spans"
            )
        agl.APO.__init__(self, *args, **options)

    taken = inspect.signature(agl.APO.__init__)
    added = inspect.Parameter("_poml_trace", inspect.Parameter.KEYWORD_ONLY, default=False)
    vars(__init__)["__signature__"] = taken.replace(parameters=[*taken.parameters.values(), added])
    namespace = {"__module__": __name__, "__doc__": agl.APO.__doc__, "__init__": __init__}
    made = refusing(INSIDE)(type("APO", (agl.APO,), namespace))
    globals()[name] = made
    return made
