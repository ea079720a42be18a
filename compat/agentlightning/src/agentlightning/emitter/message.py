"""Messages."""

from agl.emitter import *
from agl.semconv import *
