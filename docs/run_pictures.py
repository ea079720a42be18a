"""Pictures of one run for README and docs: ``python -m docs.run_pictures RUN [STEP]``.

RUN is the folder of a run of README's script. ``docs/pictures/sums.svg`` is the curve of its
rewards, and ``why-token.png`` the box of ``agl ui`` on the first token of an answer of STEP with
a reward of 1. The curve ``reasoning-gym.svg`` is drawn by ``examples/reasoning_gym/train.py``.
"""

import json
import os
import shutil
import sys
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
WIDTH, HEIGHT = 740, 526


def draw_curve(run: Path, file: Path) -> None:
    """Mean reward of each step, and of the held-out tasks where they were run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "agl"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for name, mark, label in (("", ".-", "training"), ("val/", "o--", "held-out sums")):
        key = f"{name}reward/mean"
        points = [(line["step"], line[key]) for line in lines if key in line]
        axes.plot(*zip(*points, strict=True), mark, label=label)
    axes.set(xlabel="step of GRPO", ylabel="mean reward", ylim=(-0.02, 1.02))
    axes.set_title("SmolLM2-135M learns sums, two CPU cores")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})


def show_token(run: Path, step: int, file: Path) -> None:
    """The box that says why a token was trained, without what stands below the fold."""
    from playwright.sync_api import sync_playwright

    from agl_ui.data_sources import DataSources
    from agl_ui.serving import Server

    os.chdir(run.parent.parent)  # where its agl-runs is
    server = Server(DataSources(), is_open=True)
    address = server.start()
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 1200})
        page.goto(f"{address}s/{run.name}/rollouts?mode=train&step={step}&above=0.5")
        page.locator("#table tbody a.id").first.click()
        page.locator(".tokens summary").first.click()
        page.locator(".ids a").first.click()
        box = page.locator("#why").bounding_box()
        assert box is not None
        top = page.evaluate("scrollY") + box["y"] - 8
        clip = {"x": 0, "y": top, "width": WIDTH, "height": HEIGHT}
        page.screenshot(path=file, clip=clip, full_page=True)
        browser.close()
    server.stop()


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    draw_curve(folder, PICTURES / "sums.svg")
    show_token(folder, int(sys.argv[2]) if sys.argv[2:] else 3, PICTURES / "why-token.png")
