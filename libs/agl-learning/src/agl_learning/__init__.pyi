from .advantages.comparisons import Inputs as Inputs, compared as compared
from .advantages.estimator_option import Estimator as Estimator, Foreseen as Foreseen
from .advantages.estimators import ESTIMATORS as ESTIMATORS
from .advantages.group_advantages import (
    group_advantages as group_advantages,
    sibling_advantages as sibling_advantages,
)
from .advantages.overlong_penalty import Overlong as Overlong
from .advantages.trajectories import Call as Call, Trajectories as Trajectories
from .advantages.weighing import (
    Weighed as Weighed,
    WeighingOptions as WeighingOptions,
    weigh as weigh,
)
from .collect.collector import Collector as Collector
from .collect.results import Collected as Collected, Ended as Ended
from .collect.step_metrics import collected_metrics as collected_metrics, usable_rows as usable_rows
from .collect.task_order import TaskOrder as TaskOrder
from .early_stopping import EarlyStopping as EarlyStopping
from .pairs import preference_pairs as preference_pairs
from .reports.diagnostics import Finding as Finding
from .reports.report import Report as Report
from .reports.run_metrics import RunMetrics as RunMetrics
from .run.checkpoint import find_checkpoint as find_checkpoint
from .run.folder import Generation as Generation, begin_generation as begin_generation
from .selection import select_best as select_best
from .team import Team as Team
from .trainer.base import Training as Training
from .trainer.billing import Bill as Bill, PaidTraining as PaidTraining
from .trainer.online import OnlineTraining as OnlineTraining
from .trainer.options import Evaluation as Evaluation, Lora as Lora
from .trainer.version import FineTuning as FineTuning
