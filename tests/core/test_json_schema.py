"""``agl config --schema``: what editors complete and check ``agl.yaml`` with."""

import json
import re
from pathlib import Path

import pytest

from agl.plugins.registry import names_in
from agl_runs.config.json_schema import json_schema
from agl_runs.config.overrides import parse_yaml

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def errors():
    """``errors({...})``: the places of what the schema says is wrong."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    return lambda values: ["/".join(map(str, one.path)) for one in validator.iter_errors(values)]


@pytest.mark.plugins
def test_schema_takes_what_the_pages_and_examples_write(errors):
    pytest.importorskip("agl_torch")
    texts = [path.read_text("utf-8") for path in ROOT.glob("examples/**/agl.yaml")]
    for page in ROOT.glob("docs/**/*.md"):
        texts += re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    known, checked = set(names_in("agl.algorithms")), 0
    for text in texts:
        values = parse_yaml(text, "a page")
        algorithm = values.get("algorithm") if isinstance(values, dict) else None
        name = algorithm.get("type") if isinstance(algorithm, dict) else algorithm
        if name in known:
            checked += 1
            assert errors(values) == [], text
    assert checked > 5


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"algorithm": {"type": "baseline", "n_epochs": 2}, "runners": 2}, []),
        ({"algorithm": "baseline", "runners": "${RUNNERS}", "store": {"durability": "full"}}, []),
        ({"algorithm": "mine:Algorithm", "tracer": {"type": "mine:Tracer", "any": 1}}, []),
        ({"runner": {"heartbeat_interval": 5}, "hooks": ["mine:hook"], "adapter": None}, []),
        ({"algoritm": "baseline"}, [""]),
        ({"algorithm": {"type": "baseline", "n_epoch": 2}}, ["algorithm"]),
        ({"algorithm": {"type": "baseline", "n_epochs": "many"}}, ["algorithm"]),
        ({"algorithm": "nonesuch"}, ["algorithm"]),
        ({"runners": "two"}, ["runners"]),
        ({"hooks": "one"}, ["hooks"]),
    ],
)
def test_schema_refuses_what_agl_run_refuses(errors, values, wrong):
    assert errors(values) == wrong


def test_options_have_their_texts(agl):
    schema = json.loads(agl("config", "--schema").out)
    baseline = next(
        block
        for block in schema["properties"]["algorithm"]["anyOf"]
        if block.get("properties", {}).get("type", {}).get("const") == "baseline"
    )
    assert baseline["properties"]["n_epochs"]["description"] == "How often each task runs."
    assert "Where all meet" in schema["properties"]["store"]["description"]
