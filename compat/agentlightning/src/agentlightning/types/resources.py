"""What an agent uses."""

from agl.types.resources import *
