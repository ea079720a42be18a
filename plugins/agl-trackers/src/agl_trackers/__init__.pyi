"""The public names; each is imported when it is first used."""

from .records import Prompt as Prompt, RunAbout as RunAbout, Sample as Sample
from .tensorboard import TensorBoard as TensorBoard
from .tracker import Tracker as Tracker

__version__: str
