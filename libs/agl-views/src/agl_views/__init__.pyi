from .explanations.explanation import Explanation as Explanation, explain as explain
from .explanations.rollout_view import Shown as Shown, show as show
from .explanations.token_explanation import explain_token as explain_token
from .explanations.token_parts import TokenExplanation as TokenExplanation
from .runs.prompt_runs import PromptRun as PromptRun, PromptRuns as PromptRuns
from .tables.file_store import FileStore as FileStore
from .tables.rollout_table import Listed as Listed, Wanted as Wanted, listed as listed
from .tables.stores import open_store as open_store
from .tables.task_changes import TaskChange as TaskChange, task_changes as task_changes
