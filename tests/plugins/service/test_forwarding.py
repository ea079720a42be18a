"""What a server passes on to the store and the model of a job: pieces, bodies, tokens, who left."""

import asyncio
import contextlib
import hashlib
import os
import shutil
import ssl
import subprocess
import threading
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import aiohttp
import pytest
import requests
from tests.interpreter import python
from tests.stores import served

import agl
from agl.types import ProxyLLM
from agl_http.layers import disconnected, read_body
from agl_http.server import ServerThread
from agl_http.tokens import Tokens, with_token
from agl_service.jobs import Job, Jobs
from agl_service.server import app_of
from agl_service.settings import Settings
from agl_service.users import token_of
from agl_sqlite.lockfile import LockFile

TOKEN = "of-the-admin-of-a-job"


class Model:
    """Answers by path; notes who went before the end."""

    def __init__(self) -> None:
        self.goes_on, self.left = threading.Event(), threading.Event()
        self.thread = ServerThread(self)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return None
        body = b""
        if scope["path"] != "/stream":
            body = await read_body(receive, 2**30)
        headers = [(b"x-query", scope["query_string"]), (b"set-cookie", b"a=1")]
        start = {"type": "http.response.start", "status": 201, "headers": headers}
        if scope["path"] == "/echo":
            headers += [one for one in scope["headers"] if one[0].startswith((b"x-", b"content-"))]
            headers.append((b"x-host", dict(scope["headers"])[b"host"]))
            await send(start)
            return await send({"type": "http.response.body", "body": body})
        await send(start)
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        going = asyncio.ensure_future(asyncio.to_thread(self.goes_on.wait, 60))
        gone = asyncio.ensure_future(disconnected(receive))
        await asyncio.wait({going, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.left.set()
            self.goes_on.set()
            return None
        gone.cancel()
        return await send({"type": "http.response.body", "body": b", last"})


@pytest.fixture
def model():
    made = Model()
    made.thread.start()
    yield made
    made.goes_on.set()
    made.thread.stop()


@pytest.fixture
async def store():
    async with served(token=TOKEN) as (server, _):
        yield server


@pytest.fixture(params=["its server", "another server"])
def job(request, tmp_path, store, model):
    """A job of ann that runs, at its own server or at one that passes all on to that one."""
    jobs = Jobs(tmp_path)
    made = jobs.add(Job("j", "ann", "train", 1, time.time(), TOKEN, ""), {})
    ports = {"store": urlsplit(store.address).port, "model": model.thread.port}
    other = Jobs(tmp_path, address="http://other")
    settings = Settings({"type": "grpo", "model": "none"})
    threads = [ServerThread(app_of(one, settings)) for one in (jobs, other)]
    for thread in threads:
        thread.start()
    jobs.address = threads[0].url
    jobs.own["ann", "j"] = jobs.change(made, "running", ports=ports, server=jobs.address)
    claim = LockFile(jobs.folder_of(made) / "claim.lock")
    url = f"{threads[request.param == 'another server'].url}/runs/ann/j"

    def change(state, **more) -> None:
        jobs.own.clear()
        jobs.change(made, state, **more)

    yield SimpleNamespace(url=url, own=jobs.address, change=change)
    claim.release()
    for thread in threads:
        thread.stop()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])  # which nobody may undo on the way
def test_bodies_and_headers_arrive_as_they_were_sent(job, model, encoding):
    sent = os.urandom(2**20) * 12
    digest = hashlib.sha256(sent).digest()
    headers = {"Content-Encoding": encoding, "X-Name": "é".encode(), "Accept-Encoding": "identity"}
    url = f"{job.url}/model/echo?a=%2Fb&c"
    asked = requests.post(url, data=sent, headers=headers, stream=True)
    assert (asked.status_code, asked.headers["X-Query"]) == (201, "a=%2Fb&c")
    assert hashlib.sha256(asked.raw.read()).digest() == digest
    assert asked.headers["X-Name"].encode("latin-1") == "é".encode()
    assert asked.headers["X-Host"] == f"127.0.0.1:{model.thread.port}"
    assert asked.headers["Content-Length"] == str(len(sent))
    pieces = requests.put(url, data=iter([b"one, ", b"two"]))
    assert (pieces.content, requests.get(url).content) == (b"one, two", b"")


def test_an_answer_comes_piece_by_piece(job, model):
    with requests.get(f"{job.url}/model/stream", stream=True) as asked:
        pieces = asked.iter_content(None)
        assert next(pieces) == b"first"
        model.goes_on.set()
        assert next(pieces) == b", last"


async def test_who_goes_ends_the_call_at_the_model(job, model):
    async with aiohttp.ClientSession() as session:
        asking = await session.get(f"{job.url}/model/stream")
        assert await asking.content.readany() == b"first"
        asking.close()
        await asyncio.to_thread(model.left.wait, 60)
    assert model.left.is_set()


def test_a_job_that_does_not_run_is_away_for_now_and_so_is_none(job):
    own_again = job.own.replace("127.0.0.1", "localhost")
    for state, server in (("paused", job.own), ("finished", job.own), ("running", own_again)):
        job.change(state, server=server)  # somebody else may have its ports now
        for url in (job.url, f"{job.url}k"):
            asked = requests.get(f"{url}/model/echo")
            assert (asked.status_code, asked.headers["Retry-After"]) == (503, "1")
            assert asked.json()["error_type"] == "StoreUnavailableError"
            where = f"{urlsplit(url).path}/model/echo"
            assert asked.json()["detail"].startswith(f"{where}: its job does not run")


def test_each_token_opens_what_it_is_for(job, store, tmp_path):
    url = f"{job.url}/store/v1/agl/rollouts"

    def status(token):
        return requests.get(url, headers={"Authorization": f"Bearer {token}"}).status_code

    others = Tokens("of-another-job-of-the-server").issue("runner")
    users = [token_of(tmp_path, name) for name in ("ann", "bob")]
    assert [status(token) for token in (TOKEN, others, "", *users)] == [200, 401, 401, 401, 401]


@pytest.mark.parametrize(
    "which",
    ["../ann/j", "%2e%2e/ann/j", "ann/%2E", "ann/..", "ann/j%2f..", ".", "ann/" + "j" * 300],
)
async def test_no_other_path_leads_to_a_job(job, which):
    parts = urlsplit(job.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    token = f"Authorization: Bearer {TOKEN}"
    path = f"/runs/{which}/store/v1/agl/rollouts"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{token}\r\n\r\n".encode())
    answer = await reader.readline()
    assert answer.split()[1] in (b"401", b"404", b"503"), answer
    writer.close()


@pytest.fixture
def certificate(tmp_path):
    """Of localhost, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = tmp_path / "key.pem", tmp_path / "certificate.pem"
    about = ["-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext"]
    names = ["subjectAltName=DNS:localhost", "-keyout", files[0], "-out", files[1]]
    subprocess.run(["openssl", "req", "-x509", *about, *names], check=True, capture_output=True)
    return files


@pytest.fixture
async def encrypted(certificate, job):
    """The address of the job behind a proxy that ends TLS."""
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate[1], certificate[0])

    async def copy(source, target) -> None:
        while piece := await source.read(65536):
            target.write(piece)
            await target.drain()
        target.close()

    async def join(reader, writer) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", urlsplit(job.url).port)
        with contextlib.suppress(OSError):
            await asyncio.gather(copy(reader, ours), copy(theirs, writer))

    server = await asyncio.start_server(join, "127.0.0.1", 0, ssl=secure)
    yield f"https://localhost:{server.sockets[0].getsockname()[1]}/runs/ann/j"
    server.close()


CLAIM = """
import asyncio, sys
from agl_service import Client
from agl_service.workers import JobStore

async def main(url, token):
    store = JobStore(url, token)
    rollout = await store.dequeue_rollout()
    found = (await store.get_resources_by_id(rollout.resources_id)).resources
    print(rollout.input, found["llm"].get_base_url(), found["text"].template)
    await store.close()

asyncio.run(main(*sys.argv[1:3]))
print(Client(sys.argv[3]).jobs()[0]["id"])
"""


async def test_store_and_model_are_behind_tls_with_the_server(
    encrypted, certificate, store, tmp_path
):
    llm = ProxyLLM(endpoint="http://127.0.0.1:1/v1", model="none")
    text = agl.PromptTemplate(template="as it is", engine="f-string")
    told = await store.add_resources({"llm": llm, "text": text})
    await store.enqueue_rollout("1?", resources_id=told.resources_id)
    users = with_token(encrypted.partition("/runs")[0], token_of(tmp_path, "ann"))
    words = "-c", CLAIM, encrypted, Tokens(TOKEN).issue("runner"), users
    env = {**os.environ, "SSL_CERT_FILE": str(certificate[1])}  # Python reads it as it begins
    ended = await asyncio.to_thread(python, *words, env=env)
    assert ended.stdout == f"1? {encrypted}/model/v1 as it is\nj\n", ended.stderr
    assert "endpoint was read" not in ended.stderr
