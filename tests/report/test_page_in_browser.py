"""The page of a report: its colours, and how a browser shows it, from disk and without a network."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.kept_runs import interrupted_run, kept_run
from zeus_core.cli import main
from zeus_core.report import page as report_page

STYLE = Path(report_page.__file__).with_name("page.html").read_text(encoding="utf-8")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OFFLINE = ["--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]


def colors(dark):
    """The colours of a theme, by name."""
    light, _, others = STYLE.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(\w+): (#\w{6});", light))
    return {**found, **dict(re.findall(r"--(\w+): (#\w{6});", others.partition("@media print")[0]))} if dark else found


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """The contrast by the Web Content Accessibility Guidelines: text needs 4.5, shapes 3."""
    lower, higher = sorted(map(luminance, (one, other)))
    return (higher + 0.05) / (lower + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_shapes_are_readable_in_both_themes(dark):
    theme = colors(dark)
    for name in ("ink", "soft", "good", "bad"):
        for below in ("card", "paper"):
            assert contrast(theme[name], theme[below]) >= 4.5, (name, below)
    for name in ("accent", "chosen", "steps", "generation", "reference", "evaluation", "checkpoint", "idle"):
        assert contrast(theme[name], theme["card"]) >= 3, name


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_it_without_a_network_and_without_a_complaint(tmp_path, dark):
    kept_run(tmp_path / "plain", steps=20)
    interrupted_run(tmp_path / "interrupted", 3)
    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    assert main(["report", str(tmp_path / "plain"), str(tmp_path / "interrupted"), "--output", str(page)]) == 0
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *OFFLINE]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--user-data-dir={tmp_path / 'user'}"]
    command += ["--enable-logging=stderr", "--window-size=1080,1600", f"--screenshot={picture}", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    assert "CONSOLE" not in shown.stderr
    image = pytest.importorskip("matplotlib.image").imread(picture)[..., :3]
    ground = image[5, 5]
    expected = [int(colors(dark)["paper"][at : at + 2], 16) / 255 for at in (1, 3, 5)]
    assert ground == pytest.approx(expected, abs=0.02)
    steps = [int(colors(dark)["steps"][at : at + 2], 16) / 255 for at in (1, 3, 5)]
    assert (abs(image - steps).max(axis=2) < 0.02).sum() > 3000  # the bars of the steps
