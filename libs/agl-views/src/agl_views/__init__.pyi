from .explanations.explanation import (
    CallLine as CallLine,
    Explanation as Explanation,
    explain as explain,
)
from .explanations.rollout_view import Shown as Shown, show as show
from .explanations.token_explanation import explain_token as explain_token
from .explanations.token_parts import TokenExplanation as TokenExplanation
from .explanations.trace_reader import Part as Part
from .explanations.turns import Turn as Turn, turns as turns
from .runs.prompt_runs import (
    Candidate as Candidate,
    Evaluation as Evaluation,
    PromptRun as PromptRun,
    PromptRuns as PromptRuns,
)
from .tables.file_store import FileStore as FileStore
from .tables.rollout_table import Listed as Listed, Wanted as Wanted, listed as listed
from .tables.stores import open_store as open_store
from .tables.task_changes import TaskChange as TaskChange, task_changes as task_changes
