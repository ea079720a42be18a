"""agl-agentlightning and the original bring a package of one name."""

from pathlib import Path

from tests.interpreter import python


def test_the_original_beside_ours_is_refused_by_name(tmp_path: Path) -> None:
    metadata = tmp_path / "agentlightning-0.3.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: agentlightning\nVersion: 0.3.0\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import agentlightning"
    run = python("-c", program)
    assert run.returncode == 1
    assert "pip uninstall agentlightning" in run.stderr


def test_names_come_from_agl() -> None:
    import agentlightning
    import agl

    assert issubclass(agentlightning.Trainer, agl.Trainer)
