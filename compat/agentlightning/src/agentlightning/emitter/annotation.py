"""Annotations and operations."""

from agl.emitter import *
from agl.semconv import *
