"""``Distillation``: the model answers, and a teacher says how likely it finds each word of that.

With teacher_t the teacher's log-probability of sampled token t, and old_t the model's own, over all
T sampled tokens of a rollout,

    G_t = sum over s >= t of gamma^(s - t) * (teacher_s - old_s)
    A_t = G_t - mean of G over the step, each rollout with weight 1

and what a token gains is the clipped surrogate of ``loss``. With ``gamma`` 0 a token has what it
costs itself: its expected gradient is minus that of KL(model | teacher), the reverse divergence, at
states to which the model itself comes. With 1 it has what it leads to as well.

Advantages come from ``reverse_kl`` of ``agl_learning.advantages.estimators``.

Sources: MiniLLM (arXiv:2306.08543), GKD (arXiv:2306.13649), and for ``gamma`` 0 "On-Policy
Distillation", https://thinkingmachines.ai/blog/on-policy-distillation.

Where we differ, besides what ``loss`` says: the mean is subtracted, which biases nothing, as
without it nearly all tokens of a model far from its teacher have negative advantages; and the ratio
of these has a cap, see ``loss.clipped``. Rewards are measured and teach nothing.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from agl.errors import ConfigError
from agl_learning.advantages.estimator_option import Estimator, Foreseen
from agl_learning.advantages.overlong_penalty import Overlong
from agl_learning.trainer.options import Credit
from agl_runs.options import pick_options
from agl_torch.models import load_model, resolve_dtype
from agl_torch.options import LearnerOptions
from agl_torch.policy import PolicyTraining

if TYPE_CHECKING:
    from agl_learning.advantages.weighing import Weighed
    from agl_records.training_data import TrainingRow


@dataclass(kw_only=True, eq=False, repr=False)
class Distillation(PolicyTraining):
    """On-policy distillation (arXiv:2306.13649) in plain PyTorch: a teacher instead of rewards.

    The agent returns a reward all the same, if only 0: it is what is measured.

    Args:
        teacher: The better model, as ``model`` takes it; with the same tokens.
        gamma: Discount factor: how much later tokens count for an earlier one.
    """

    name = "distillation"
    models = ("model", "teacher")

    estimator: Estimator = field(default=Estimator(type="reverse_kl"), init=False)
    credit: Credit = field(default=None, init=False)
    overlong: Overlong = field(default=Overlong(), init=False)
    teacher: Any
    gamma: Annotated[float, Ge(0), Le(1)] = 0.0

    def _load_models(self, checkpoint: Path | None, folder: Path) -> tuple[Any, Any, str]:
        # The teacher comes second: what builds one may set the seed of torch, and before the other
        # it is seen whether there is room for both.
        loaded = super()._load_models(checkpoint, folder)
        self._teacher = load_model(
            self.teacher, self.device, resolve_dtype(self.dtype, self.device)
        )
        self._teacher.requires_grad_(False)
        return loaded

    def load(self, checkpoint: Path | None, folder: Path) -> None:
        """And see whether the teacher knows the words."""
        super().load(checkpoint, folder)
        known = self._teacher.get_input_embeddings().weight.shape[0]
        if (needed := len(self._tokenizer)) > known:
            raise ConfigError(
                f"{self.title}: the teacher knows {known} tokens, and the model's tokenizer has "
                f"{needed}. Take a teacher with the same tokenizer"
            )

    def foresee(self, rows: "list[TrainingRow]") -> Foreseen:
        """How much likelier the teacher finds each token."""
        from agl_torch.batch import logprob_differences

        gaps = logprob_differences(self._teacher, rows, pick_options(LearnerOptions, self))
        self._gaps = [gap for of_row in gaps for gap in of_row]
        return Foreseen([[-gap for gap in of_row] for of_row in gaps], gamma=self.gamma)

    def update(self, rows: "list[Weighed]") -> "tuple[dict[str, float], list[Weighed]]":
        """With ``kl/teacher``: by how much, on average, the model finds its tokens likelier."""
        learned, used = super().update(rows)
        return {"kl/teacher": sum(self._gaps) / len(self._gaps), **learned}, used
