"""Environment variables."""

from agl.env import *
