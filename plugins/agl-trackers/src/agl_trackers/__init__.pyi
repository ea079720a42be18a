"""The public names; each is imported when it is first used."""

from .mlflow import MLflow as MLflow
from .otlp import OTLP as OTLP
from .records import Prompt as Prompt, RunAbout as RunAbout, Sample as Sample
from .tensorboard import TensorBoard as TensorBoard
from .tracker import Tracker as Tracker
from .trackio import Trackio as Trackio
from .wandb import WandB as WandB

__version__: str
