"""OpenTelemetry's spans."""

from agl import OtelTracer as OtelTracer
