#!/usr/bin/env python3
# Finds dead links in a site of HTML files, pages without a link to them, and Markdown that is shown
# unconverted.
# SPDX-License-Identifier: Apache-2.0
"""Usage: site_test.py SITE_FOLDER [DOCS_FOLDER]     links to other hosts are counted, not followed

With DOCS_FOLDER, also checks that each of its pages has as many headings in the site as in its source, and shows each
fenced block as code.
"""
import html.parser
import os
import pathlib
import re
import sys
import tempfile
import urllib.parse

START = "index.html"
BLOCKS = {"p", "li", "td", "th", "div", "article", "dd", "dt", *(f"h{i}" for i in range(1, 7))}
# A fence, or a line within a paragraph that begins like an item of a list.
LITERAL = re.compile(r"```|~~~|\S\s*\n\s*(?:[*+-]|1\.) \S")
FENCED = re.compile(r"^( *`{3,}).*\n((?:.*\n)*?)\1", re.MULTILINE)


class Page(html.parser.HTMLParser):
    """Page of the site: the targets of its links, its anchors, its code, and the text of its other blocks."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.blocks, self.code, self.num_headings = [], set(), [""], "", 0
        self.hidden = []  # open elements whose text is not prose
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        for key in ("href", "src"):
            if attributes.get(key) and (tag, attributes.get("rel")) != ("link", "canonical"):
                self.links.append(attributes[key])
        self.num_headings += bool(re.fullmatch(r"h[1-6]", tag))
        if tag in BLOCKS:
            self.blocks.append("")
        if tag in ("pre", "script", "style", "code"):
            self.hidden.append(tag)
            self.blocks[-1] += "."

    def handle_endtag(self, tag):
        if self.hidden[-1:] == [tag]:
            self.hidden.pop()
        if tag in BLOCKS:
            self.blocks.append("")

    def handle_data(self, data):
        if "pre" in self.hidden:
            self.code += "".join(data.split())
        elif not self.hidden:
            self.blocks[-1] += data


def check(site, docs=None):
    """Returns (errors, number of pages, number of links)."""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    errors, num_links, linked = set(), 0, {START}
    for name, page in pages.items():
        errors |= {f"{name}: Markdown that is not rendered: {block.strip()[:200]}" for block in page.blocks if LITERAL.search(block)}
        for link in page.links:
            num_links += 1
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), urllib.parse.unquote(parts.path))) if parts.path else name
            fragment = urllib.parse.unquote(parts.fragment)
            if (site / target).is_dir():
                target = os.path.normpath(os.path.join(target, START))
            if not (site / target).is_file():
                errors.add(f"{name}: {link}: no such file")
            elif target in pages:
                if target != name:
                    linked.add(target)
                if fragment and fragment not in pages[target].anchors:
                    errors.add(f"{name}: {link}: no such anchor in {target}")
    errors |= {f"{name}: no page links to it" for name in set(pages) - linked}
    for source in sorted(docs.glob("*.md")) if docs else []:
        text, page, name = source.read_text(encoding="utf-8"), pages[source.stem + ".html"], source.stem + ".html"
        expected = len(re.findall(r"^#{1,6} ", FENCED.sub("", text), re.MULTILINE))
        if page.num_headings != expected:
            errors.add(f"{name}: {page.num_headings} headings; expected {expected} as in {source.name}")
        errors |= {f"{name}: expected as a code block: {block}" for _, block in FENCED.findall(text)
                   if "".join(block.split()) not in page.code}
    return sorted(errors), len(pages), num_links


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder)
        (site / "a").mkdir()

        def found(index, other="<p id='x'>", docs=None):
            (site / START).write_text(index, encoding="utf-8")
            (site / "a/b.html").write_text(other, encoding="utf-8")
            return check(site, docs)[0]

        assert found("<a href='a/b.html#x'>") == []
        assert found("<a href='a/b.html'><a href='https://elsewhere.invalid'>", "<a href='..'>") == []
        assert found("<a href='a/b.html'><img src='c.svg'>") == ["index.html: c.svg: no such file"]
        assert found("<a href='a/b.html#y'>") == ["index.html: a/b.html#y: no such anchor in a/b.html"]
        assert found("<a href='#top'><a href='a/b.html'>") == ["index.html: #top: no such anchor in index.html"]
        assert found("<p>") == ["a/b.html: no page links to it"]
        link = "<a href='a/b.html'>"
        for rendered in ("<p>2 * x\nis <code>a\n* b</code></p>", "<pre><code>a\n* b\n```sh\n</code></pre>", "<li>a</li>\n<li>1. b</li>",
                         "<p>a\n</p>- b", "<p>a\n2. b", "<code>```cpp</code>"):
            assert found(link + rendered) == [], rendered
        for literal in ("<p>weights.\n   * Yes</p>", "<p>a <code>b</code>\n- c", "<p>a\n1. b</p>", "<p>```sh elsewhere\nls"):
            assert len(found(link + literal)) == 1, literal
        (site / "index.md").write_text("# a\n```sh elsewhere\n# no heading\n```\n## b\n", encoding="utf-8")
        assert found(link + "<h1>a</h1><pre># no <b>heading</b>\n</pre><h2>b</h2>", docs=site) == []
        assert len(found(link + "<h1>a</h1><code>sh elsewhere\n# no heading</code><h2>b</h2>", docs=site)) == 1
        assert len(found(link + "<h1>a</h1><pre># no heading</pre>", docs=site)) == 1


def main():
    self_test()
    errors, num_pages, num_links = check(*(pathlib.Path(each).resolve() for each in sys.argv[1:]))
    for error in errors:
        print(error)
    print(f"site: {num_links} links in {num_pages} pages, {len(errors)} errors")
    return 1 if errors or num_links == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
