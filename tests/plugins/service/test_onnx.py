"""A trained model as ONNX, by the real optimum in an environment of its own."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from agl_service import TrainingError

from .test_job_views import trained
from .test_jobs import ann as ann, queue as queue

LOGITS = """
import json, sys
import torch
from optimum.onnxruntime import ORTModelForCausalLM

model = ORTModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.tensor([[5, 6, 7]])
out = model(input_ids=ids, attention_mask=torch.ones_like(ids))
print(json.dumps(out.logits[0, -1].tolist()))
"""


def test_a_model_that_optimum_cannot_convert_is_said(queue, ann, tmp_path, monkeypatch):
    (tmp_path / "optimum-cli").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "optimum-cli").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    trained(queue, ann)
    with pytest.raises(TrainingError, match="optimum-cli ended with code 3"):
        ann.download_model(str(tmp_path / "out"), format="onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_a_model_as_onnx_has_the_same_logits(queue, ann, model, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    own = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", own], check=True)
    for packages in (["torch==2.13.0"], ["optimum-onnx[onnxruntime]", "onnxscript"]):
        subprocess.run([own / "bin/python", "-m", "pip", "install", "-q", *packages], check=True)
    monkeypatch.setenv("PATH", str(own / "bin"), prepend=os.pathsep)
    job, out = trained(queue, ann, steps=(1,)), str(tmp_path / "out")
    folder = queue.jobs.folder_of(job) / "run/checkpoints/step-000001"
    shutil.copytree(model, folder, dirs_exist_ok=True)
    ann.download_model(out, format="onnx")
    said = subprocess.run([own / "bin/python", "-c", LOGITS, out], check=True, capture_output=True)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    logits = loaded(torch.tensor([[5, 6, 7]])).logits[0, -1]
    assert json.loads(said.stdout) == pytest.approx(logits.tolist(), abs=1e-4)
    assert AutoTokenizer.from_pretrained(out)("ticking") == AutoTokenizer.from_pretrained(model)(
        "ticking"
    )
