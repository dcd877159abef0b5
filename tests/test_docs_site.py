"""The documentation site: the pages that are generated, and those that name things that must exist."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest

from zeus_core.cli.program import all_commands
from zeus_core.optimizer import __main__ as search
from zeus_core.pipeline import __main__ as pipeline

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DIAGRAMS = [text for main in (search, pipeline) for texts in main.DIAGRAMS.values() for text in texts]
SITE, EVIDENCE, DIAGRAM = tool("docs_site"), tool("evidence"), tool("state_diagram")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder, pictures = tmp_path_factory.mktemp("pictures"), tool("pictures")
    pictures.both(folder / "time-energy.svg", pictures.time_energy(folder))
    return folder


@pytest.mark.parametrize("name", ["time-energy.svg", "time-energy-dark.svg"])
def test_the_picture_of_the_readme_is_the_one_of_the_build(drawn, name):
    kept = (ROOT / "docs" / "pictures" / name).read_text()
    if f"Matplotlib v{matplotlib.__version__}," not in kept:
        pytest.skip("another matplotlib draws other lines")
    assert (drawn / name).read_text() == kept, "python tools/pictures.py"


def test_every_command_is_on_the_page_of_commands():
    page = SITE.commands_page()
    assert re.findall(r"^## zeus-core (\w+)$", page, re.MULTILINE) == list(all_commands())
    assert set(re.findall(r"^usage: zeus-core (\w+)", page, re.MULTILINE)) == set(all_commands())


def test_the_reference_has_every_public_name_once():
    described = {
        match for _, text in SITE.reference_pages() for match in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    }
    listed, module = set(), ""
    for line in (ROOT / "docs" / "public-api.txt").read_text(encoding="utf-8").splitlines()[2:]:
        if re.fullmatch(r"zeus_[\w.]+", line):
            module = line
        elif (match := re.match(r"    (?:class |module )?([a-z]\w+)", line, re.IGNORECASE)) and ": see " not in line:
            listed.add(f"{module}.{match[1]}")
    names = {path.rpartition(".")[2] for path in described}
    assert {path for path in listed if path.rpartition(".")[2] not in names} == set()


def test_links_from_the_root_lead_to_pages():
    home = SITE.from_root("README.md")
    targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", home) if "://" not in target}
    assert {target for target in targets if not (ROOT / "docs" / target).exists()} <= set(SITE.FROM_ROOT.values())
    assert "measurement.md" in targets


def test_links_to_pages_are_called_by_their_titles():
    pages = {"runs.md": SimpleNamespace(content_string="# Sums over many runs\n")}
    files = SimpleNamespace(get_file_from_path=pages.get)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="decisions/01.md"))
    text = "See [runs.md](../runs.md#a), [sums](../runs.md) and [no.md](no.md)."
    titled = "See [Sums over many runs](../runs.md#a), [sums](../runs.md) and [no.md](no.md)."
    assert SITE.on_page_markdown(text, page, None, files) == titled


def test_the_list_for_agents_names_every_page_with_a_sentence():
    text = SITE.llms_text()
    assert all(f"({page.stem}.html): " in text for page in PAGES)
    assert text.startswith("# zeus-core\n\n> Training uses more GPU energy than it needs.")


def test_the_evidence_is_of_every_benchmark_as_it_describes_itself():
    """If this fails: python tools/evidence.py."""
    page = EVIDENCE.PAGE.read_text(encoding="utf-8")
    assert [path.name for path in EVIDENCE.benchmarks() if EVIDENCE.heading_of(path) not in page] == []


def test_a_table_of_evidence_is_kept_until_its_benchmark_runs_again(tmp_path):
    output = tmp_path / "output.txt"
    output.write_text("a  b\n1  2\n")
    section = EVIDENCE.result_of("attribution", ["--traces", "/somewhere/else", "--seeds", "2"], output)
    assert section.startswith("`python benchmarks/attribution.py --traces FOLDER --seeds 2`, 2")
    page = EVIDENCE.page_text({"attribution": section})
    assert "a  b\n1  2\n" in page
    assert EVIDENCE.kept_sections(page) == {"attribution": section}


@pytest.mark.parametrize("text", DIAGRAMS)
def test_every_state_diagram_is_a_picture_that_needs_no_network(text):
    picture = ElementTree.fromstring(DIAGRAM.draw(text))
    words = {element.text for element in picture.iter("text")}
    labels = {line.partition(" : ")[2] for line in text.splitlines() if " : " in line}
    assert labels <= words
    assert sum(element.get("class") == "life" for element in picture.iter("path")) == text.count('state "')
    assert sum(element.get("class") == "head" for element in picture.iter("path")) == len(re.findall(r"\w --> ", text))
    assert not re.search("https?:", DIAGRAM.draw(text))


def test_tables_of_docstrings_are_tables_of_the_reference():
    pytest.importorskip("griffe")
    tables = tool("docstring_tables")
    text = "Logs:\n\n=====  ==  ====\n`a`    J   of\n`b_c`      a = b\n=====  ==  ====\n\nEnd."
    expected = "Logs:\n\n|  |  |  |\n| --- | --- | --- |\n| `a` | J | of |\n| `b_c` |  | a = b |\n\nEnd."
    assert tables.with_markdown_tables(text) == expected


def test_a_diagram_of_another_kind_is_an_error():
    with pytest.raises(ValueError, match="no line of a state diagram: a -> b"):
        DIAGRAM.draw("stateDiagram-v2\n    a -> b\n")


def test_getting_started_has_an_example_for_every_framework():
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    examples = re.findall(r"`(examples/[\w/]+\.py)`", page)
    assert {Path(example).parts[1] for example in examples} == {
        path.name for path in (ROOT / "examples").iterdir() if list(path.glob("*.py"))
    }
    assert all((ROOT / example).exists() for example in examples)


def test_every_page_named_in_the_navigation_exists():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("!!python/name:", "").replace("!ENV ", "")
    named = set(SITE.pages_in(yaml.safe_load(text)["nav"]))
    made = {*SITE.FROM_ROOT.values(), "commands.md"}
    assert {page for page in named - made if not (ROOT / "docs" / page).exists()} == set()
