"""The contract of an adapter."""

from agl.algorithm.adapter import *
