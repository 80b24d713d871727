#!/usr/bin/env python3
# Builds the documentation site: the pages of docs/, and a reference of the declarations in public headers.
# SPDX-License-Identifier: Apache-2.0
"""Usage: build.py OUTPUT_FOLDER BUILD_FOLDER

Writes the site to OUTPUT_FOLDER/site; start at index.html. Search works without a server. BUILD_FOLDER contains the
programs whose flags the site lists. Needs Doxygen, MkDocs and its theme "material" (tools/install_packages.sh test).
`cmake --build build --target reference` runs this script.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import flags
import headers
import names
import pages

ROOT = headers.ROOT
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"(?<!\[)`([A-Za-z_][\w:/]*(?:\(\))?)`(?!\])")
CARDS = ROOT / "docs/reference/cards.md"
HOME = "---\ntitle: tutti\nhide: [navigation, toc]\n---\n"
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".cu": "cpp", ".c": "c", ".py": "python", ".sh": "bash", ".proto": "protobuf",
             ".cmake": "cmake", ".json": "json"}


class Site:
    """Folder of the Markdown that MkDocs reads: copies of pages in which links to any file of the tree are rewritten."""

    def __init__(self, folder, renderer):
        self.folder = folder
        self.renderer = renderer
        self.waiting, self.done = [], set()  # files and folders of the tree that pages link to

    def add(self, path):
        """Copies a file or folder of the tree, and then all files and folders that it links to."""
        self.waiting.append(path)
        while self.waiting:
            each = self.waiting.pop()
            if each.name == "README.md" and each.parent != ROOT:
                each = each.parent
            if each in self.done:
                continue
            self.done.add(each)
            target = self.folder / names.place(each)
            target.parent.mkdir(parents=True, exist_ok=True)
            if each.suffix in (".svg", ".png"):
                shutil.copyfile(each, target)
            else:
                target.write_text(self.text(each), encoding="utf-8")

    def text(self, path):
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            readme = path / "README.md"
            about = self.rewrite(readme.read_text(encoding="utf-8"), path, path) if readme.exists() else f"# {path.name}"
            shown = (".md", ".cc", ".c") if name.startswith("examples") else (".md",)
            listing = "\n".join(f"* [`{each}`]({each})" if each.endswith(shown) else f"* `{each}`"
                                for each in tracked(path) if each != "README.md")
            return f"{about}\n\n## Files of {name}\n\n" + self.rewrite(listing, path, path) + "\n"
        text = path.read_text(encoding="utf-8")
        if name == "README.md":  # the home page: cards before its first block of code
            cards = self.rewrite(CARDS.read_text(encoding="utf-8"), CARDS.parent, path)
            before, after = (self.rewrite(each, ROOT, path) for each in re.split(r"(?=\n```)", text, maxsplit=1))
            return f'{HOME}{before}\n<div class="cards" markdown>\n\n{cards}\n</div>\n{after}'
        if path.suffix == ".md":
            return self.rewrite(text, path.parent, path)
        language = LANGUAGES.get(path.suffix, "cmake" if path.name == "CMakeLists.txt" else "")
        return f"# {name}\n\n````{language}\n{text}````\n"

    def rewrite(self, text, base, path):
        """Returns `text`, the Markdown of `path`, with its links, which are relative to `base`, rewritten for the site."""
        here = names.place(path).parent

        def url(target):
            self.waiting.append(target)
            return os.path.relpath(names.place(target), here)

        def link(match):
            before, target, fragment, after = match.groups()
            if re.match(r"\w+:", target):
                return match.group(0)
            aim = (base / target).resolve()
            if not aim.exists() or ROOT not in aim.parents:
                raise SystemExit(f"{path.relative_to(ROOT)}: link to {target}, which does not exist")
            return before + url(aim) + (fragment or "") + after

        def name(match):
            target = self.renderer.names.target(match.group(1))
            if target is not None:
                return f"[{match.group(0)}]({os.path.relpath('reference', here)}/{target})"
            program = base / match.group(1)  # a program of a folder, named in the README of this folder
            program = program if "/" in match.group(1) and program.exists() else program.with_suffix(".cc")
            return f"[{match.group(0)}]({url(program)})" if base != ROOT and program.exists() else match.group(0)

        parts = FENCED.split(with_plots(portable(text)))
        parts[::2] = [NAME.sub(name, LINK.sub(link, part)) for part in parts[::2]]
        return "".join(parts)


def portable(text):
    """Converts GitHub's Markdown for Python-Markdown: fences name only a language, nested lists are indented by four
    spaces, and a blank line precedes a list."""
    out, columns, in_fence = [""], [], False  # columns: where the text of each open list item begins
    for line in text.split("\n"):
        body = line.lstrip()
        margin, is_fence = len(line) - len(body), body.startswith("```")
        mark = re.match(r"([*+-]|\d+\.) +(?=\S)", body)
        is_item = not in_fence and mark and margin < 4 + sum(columns[-1:]) and (columns or not out[-1] or mark[1] in "*+-1.")
        if is_item and out[-1] and not columns:
            out.append("")
        if is_item or is_fence or (body and not out[-1] and not in_fence) or body.startswith("#"):
            columns = [each for each in columns if each <= margin]  # other items have ended
        text = line[min(margin, sum(columns[-1:])) :]
        out.append("    " * len(columns) * bool(body) + (re.sub(r"^(```\w+) .*", r"\1", text) if is_fence else text))
        if is_item:
            columns.append(margin + mark.end())
        in_fence ^= is_fence
    return "\n".join(out[1:])


def with_plots(text):
    """Adds, below each table, the plots that its rows link to."""
    def plots(table):
        found = re.findall(r"^\| ([^|]*) \|.*\]\((\S+\.svg)\)", table.group(0), re.MULTILINE)
        pictures = "\n\n".join(f"**{title}** ![]({file})" for title, file in found)
        return table.group(0) + (f'\n<div class="plots" markdown>\n\n{pictures}\n\n</div>\n' if found else "")
    return re.sub(r"(?:^\|.*\n)+", plots, text, flags=re.MULTILINE)


def tracked(folder):
    """Returns the names of tracked entries of the folder, or of all entries if git fails."""
    result = subprocess.run(["git", "ls-files", "."], cwd=folder, text=True, capture_output=True)
    if result.returncode:
        return sorted(each.name for each in folder.iterdir())
    return sorted({line.split("/")[0] for line in result.stdout.splitlines()})


def main():
    output = pathlib.Path(sys.argv[1]).resolve()
    source, site = output / "source", output / "site"
    shutil.rmtree(source, ignore_errors=True)
    renderer = pages.Renderer()
    staging = Site(source, renderer)
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]:
        staging.add(page)
    reference = source / "reference"
    reference.mkdir()
    listing = []
    for page in renderer.pages:
        text = renderer.page(page)
        if text:
            (reference / (page["name"] + ".md")).write_text(text, encoding="utf-8")
            staging.add(renderer.programs.example(page["example"])[1])
            listing.append(page)
    for item in renderer.silent:
        print(f"{item.header}:{item.line}: {item.name} a public name needs a comment that describes it")
    (reference / "all_names.md").write_text(renderer.index(), encoding="utf-8")
    (reference / "flags.md").write_text(flags.page(sys.argv[2]), encoding="utf-8")
    (reference / "index.md").write_text(overview(listing), encoding="utf-8")
    for each in (ROOT / "docs/reference").glob("assets/*"):
        (source / "assets").mkdir(exist_ok=True)
        shutil.copyfile(each, source / "assets" / each.name)
    config = (ROOT / "docs/reference/mkdocs.yml").read_text(encoding="utf-8")
    nav = "".join(f"    - {group}:\n" + "".join(f"      - reference/{each['name']}.md\n" for each in listing if each["group"] == group)
                  for group in dict.fromkeys(each["group"] for each in listing))
    config = config.replace("    - PAGES\n", nav).replace("FOLDER", str(ROOT / "docs/reference"))
    config = re.sub(r"( +)- FILES (.*)\n", lambda match: files_of(staging.done, *match.groups()), config)
    (output / "mkdocs.yml").write_text(config, encoding="utf-8")
    (output / "blocks.json").write_text(json.dumps(renderer.names.blocks), encoding="utf-8")
    result = subprocess.run(["mkdocs", "build", "--strict", "--clean", "-f", output / "mkdocs.yml", "-d", site],
                            text=True, capture_output=True)
    if result.returncode:
        sys.stderr.write("".join(line for line in result.stderr.splitlines(True) if "INFO" not in line))
        return result.returncode
    (site / "404.html").unlink()  # works only on a server, because its links begin with a slash
    prepare_search(site / "search")
    if renderer.silent:
        return 1
    print(f"reference: {sum(len(each) for each in renderer.items.values())} declarations, {site}/index.html")
    return 0


def files_of(done, indent, pattern):
    """Returns navigation entries for the files of the tree that have a page and whose path matches `pattern`."""
    fitting = [each for each in sorted(done) if each.relative_to(ROOT).match(pattern) and each.suffix != ".svg"]
    return "".join(f"{indent}- {each.stem}: {names.place(each)}\n" for each in fitting)


def prepare_search(folder):
    """Removes files of the tree from the search index, and writes it as a script, because file:// pages cannot fetch it."""
    index = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))
    index["docs"] = [each for each in index["docs"] if not each["location"].startswith("tree/")]
    text = json.dumps(index)
    (folder / "search_index.json").write_text(text, encoding="utf-8")
    (folder / "search_index.js").write_text(f"var searchIndex = {text}", encoding="utf-8")


def overview(listing):
    out = ["# Reference\n\nDeclarations of the public headers, generated from these headers. [All names](all_names.md) by letter;"
           " [command-line flags](flags.md).\n"]
    for group in dict.fromkeys(each["group"] for each in listing):
        out.append(f"\n## {group}\n\n| page | what |\n|---|---|")
        out += [f"| [{each['title']}]({each['name']}.md) | {' '.join(each['intro'].split())} |".replace("](../", "](../")
                for each in listing if each["group"] == group]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    sys.exit(main())
