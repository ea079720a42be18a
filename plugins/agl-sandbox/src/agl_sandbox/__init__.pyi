"""The public names; each is imported when it is first used."""

from .docker import DockerSandbox as DockerSandbox
from .grading import ProcessGrader as ProcessGrader
from .process import ProcessSandbox as ProcessSandbox

__version__: str
