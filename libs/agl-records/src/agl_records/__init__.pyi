from .calls.conversations import conversation as conversation
from .calls.reader import Recorded as Recorded, model_calls as model_calls
from .calls.sources import Dialect as Dialect
from .calls.sources.fields import make_call as make_call
from .calls.span_tree import SpanNode as SpanNode
from .credit import (
    Ask as Ask,
    Conversation as Conversation,
    CreditRule as CreditRule,
    GroupRule as GroupRule,
    Score as Score,
)
from .final_rewards import FinalReward as FinalReward, final_reward as final_reward
from .ledger.ledger import (
    Ledger as Ledger,
    load_ledger as load_ledger,
    load_parts as load_parts,
    save_ledger as save_ledger,
)
from .ledger.tables import Accounts as Accounts, Sums as Sums
from .row_builder import RowsAdapter as RowsAdapter, RowSet as RowSet
from .seeds import seed_of as seed_of
from .training_data import (
    Choice as Choice,
    ModelCall as ModelCall,
    RowBreak as RowBreak,
    TrainedModel as TrainedModel,
    TrainingRow as TrainingRow,
)
from .types import (
    EXCLUSION_REASONS as EXCLUSION_REASONS,
    Advantage as Advantage,
    Credit as Credit,
    Exclusion as Exclusion,
    ExclusionReason as ExclusionReason,
    LedgerError as LedgerError,
    LedgerPart as LedgerPart,
    StepCredit as StepCredit,
    Trained as Trained,
)
