"""What is left of the collections under the original's stores."""

from agentlightning.types.core import *
