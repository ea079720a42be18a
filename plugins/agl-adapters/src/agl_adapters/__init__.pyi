"""The public names; each is imported when it is first used."""

from .air import AutoRewards as AutoRewards
from .chats import ChatRow as ChatRow, TraceToChats as TraceToChats
from .credit.discounted import Discounted as Discounted
from .credit.final import FinalReward as FinalReward
from .credit.judge import JudgeCredit as JudgeCredit
from .credit.per_agent import PerAgent as PerAgent
from .credit.per_call import PerCall as PerCall
from .credit.stepwise import Stepwise as Stepwise
from .messages import TraceToMessages as TraceToMessages
from .proxy_triplets import LlmProxyTraceToTriplet as LlmProxyTraceToTriplet
from .rows import TraceToRows as TraceToRows
from .triplets import TracerTraceToTriplet as TracerTraceToTriplet

__version__: str
