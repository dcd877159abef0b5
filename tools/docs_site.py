"""Hooks of mkdocs: the pages of the site that are made of something else than a file in docs/.

The home page and a few others are files at the root. The reference is made of docstrings, the commands of parsers.
"""

from __future__ import annotations

import argparse
import ast
import posixpath
import re
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = runpy.run_path(str(ROOT / "tools" / "public_api.py"))["PUBLIC"]
PACKAGES = {
    "zeus_core": ROOT / "zeus_core",
    **{
        f"zeus_{name}": ROOT / "integrations" / name / f"zeus_{name}"
        for name in ("huggingface", "lightning", "deepspeed")
    },
}
FROM_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are generated, and put pages that the navigation does not name at its end."""
    from mkdocs.structure.files import File

    with tempfile.TemporaryDirectory() as folder:
        runpy.run_path(str(ROOT / "tools" / "pictures.py"))["draw_all"](Path(folder))
        for path in sorted(Path(folder).glob("*.*")):
            name = f"pictures/{path.name}"
            if files.get_file_from_path(name) is None:  # those of the README lie in docs/
                files.append(File.generated(config, name, content=path.read_bytes()))
    pages = {page: from_root(name) for name, page in FROM_ROOT.items()}
    pages["commands.md"] = commands_page()
    reference = dict(reference_pages())
    for page, text in {**pages, **reference}.items():
        files.append(File.generated(config, page, content=text))
    navigation = config["nav"]
    for section in navigation:
        if "Reference" in section:
            section["Reference"] = ["commands.md", *reference]
        if "About" in section:
            decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
            section["About"] += [f"decisions/{name}" for name in decisions]
    named = set(pages_in(navigation))
    others = [file.src_uri for file in files.documentation_pages() if file.src_uri not in named]
    if others:
        navigation.append({"More": sorted(others)})
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Give links whose text is the name of a page the title of that page."""

    def titled(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[1]))
        file = files.get_file_from_path(target)
        title = title_and_sentence(file.content_string)[0] if file is not None else ""
        return f"[{title}]({match[1]}{match[2] or ''})" if title else match[0]

    return re.sub(r"\[`?[\w./-]+\.md`?\]\(([^)#\s]+\.md)(#[^)]*)?\)", titled, markdown)


def on_post_build(config: Any) -> None:
    """Write llms.txt: all pages with a sentence each, for agents."""
    Path(config["site_dir"], "llms.txt").write_text(llms_text(), encoding="utf-8")


def pages_in(navigation: Any) -> Iterator[str]:
    """Yield the pages that a navigation names."""
    if isinstance(navigation, str):
        yield navigation
    for entry in (
        navigation.values() if isinstance(navigation, dict) else navigation if isinstance(navigation, list) else ()
    ):
        yield from pages_in(entry)


def from_root(name: str) -> str:
    """Return the text of a file at the root, with its links as seen from docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")

    def rewritten(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[2].partition("#")
        if "://" in target or not target:
            return match[0]
        if target in FROM_ROOT:
            target = FROM_ROOT[target]
        elif target.startswith("docs/") and target.endswith(".md"):
            target = target.removeprefix("docs/")
        else:
            return match[1][1:-1]  # of a file that the site does not have
        return f"{match[1]}({target}{hash_sign}{anchor})"

    return re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", rewritten, text).replace('="docs/pictures/', '="pictures/')


def commands_page() -> str:
    """Return a page of all commands, with the help that their parsers print."""
    from zeus_core.cli.program import all_commands, make_parser

    commands = all_commands()
    parsers = parsers_below(make_parser(commands))
    lines = ["# Commands", "", "`zeus-core COMMAND --help` prints the same.", ""]
    for name, command in commands.items():
        lines += [f"## zeus-core {name}", "", f"{command.SUMMARY}.", ""]
        for parser in (parsers[name], *parsers_below(parsers[name]).values()):
            lines += ["```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def parsers_below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a program's commands, or of a command's modes."""
    return {
        name: below
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, below in action.choices.items()
    }


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each module with public names; a name that several modules offer is on the first one's."""
    seen: set[str] = set()
    for module, file in public_modules():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [name for name in public_names(tree) if origin_of(tree, module, name) not in seen]
        seen |= {origin_of(tree, module, name) for name in names}
        if names:
            summary = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            blocks = "\n\n".join(f"::: {module}.{name}" for name in names)
            yield f"reference/{module}.md", f"# {module}\n\n{summary}\n\n{blocks}\n"


def public_modules() -> Iterator[tuple[str, Path]]:
    """Yield each public module, with its file."""
    for module in PUBLIC:
        package, *parts = module.split(".")
        path = PACKAGES[package].joinpath(*parts)
        yield module, path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(tree: ast.Module) -> list[str]:
    """Return `__all__` of a module, but for its version; empty without one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if not name.startswith("__")]
    return []


def origin_of(tree: ast.Module, module: str, name: str) -> str:
    """Return where a public name comes from: the module that it is imported from, or this one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return f"{node.module}.{name}"
    return f"{module}.{name}"


def llms_text() -> str:
    """Return the table of contents for agents, in the format of llmstxt.org."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    summary = " ".join(readme.split("\n\n")[1].split())
    lines = ["# zeus-core", "", f"> {summary}", "", "## Pages", ""]
    for page in sorted((ROOT / "docs").glob("*.md")):
        title, first = title_and_sentence(page.read_text(encoding="utf-8"))
        lines.append(f"- [{title}]({page.with_suffix('.html').name}): {first}")
    lines += ["", "## Reference", ""]
    lines += [f"- [{page[10:-3]}]({page[:-3]}.html)" for page, _ in reference_pages()]
    return "\n".join([*lines, ""])


def title_and_sentence(text: str) -> tuple[str, str]:
    """Return the title of a page, and the first sentence of prose on it."""
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    first = next((" ".join(part.split()) for part in prose if part.strip() and part.strip()[0] not in "#|-"), "")
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)
    return title[1] if title else "", re.split(r"(?<=[.]) ", first)[0]


if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
