"""Whether the library behind a tracer is installed, in a version that was tested."""

from importlib import metadata

from packaging.specifiers import SpecifierSet

from agl.errors import BrokenComponentError, install_line


def require_backend(tracer: str, distribution: str, wanted: str) -> None:
    """Check a tracer's library before anything starts; nothing is imported.

    Args:
        tracer: Name of the tracer, which is also that of the extra.
        distribution: What has to be installed.
        wanted: Its versions, as in ``>=0.4.21,<0.5``.

    Raises:
        BrokenComponentError: It is missing, or of another version.
    """
    line = f"Run: {install_line(f'agl-tracers[{tracer}]')}"
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise BrokenComponentError(
            f"tracer {tracer!r} needs {distribution!r}, which is not installed. {line}"
        ) from None
    if not SpecifierSet(wanted).contains(found, prereleases=True):
        raise BrokenComponentError(
            f"tracer {tracer!r} needs {distribution}{wanted}; found {distribution} {found}. {line}"
        )
