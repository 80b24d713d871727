#!/usr/bin/env python3
# Finds dead links in a site of HTML files, and pages that no link leads to.
# SPDX-License-Identifier: Apache-2.0
"""Usage: links_test.py SITE_FOLDER     links to other hosts are counted, not followed
"""
import html.parser
import os
import pathlib
import sys
import tempfile
import urllib.parse

START = "index.html"


class Page(html.parser.HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        for key in ("href", "src"):
            if attributes.get(key) and (tag, attributes.get("rel")) != ("link", "canonical"):
                self.links.append(attributes[key])


def check(site):
    """(errors, number of pages, number of links)"""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    errors, num_links, linked = set(), 0, {START}
    for name, page in pages.items():
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
                    errors.add(f"{name}: {link}: no such place in {target}")
    errors |= {f"{name}: no page links to it" for name in set(pages) - linked}
    return sorted(errors), len(pages), num_links


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder)
        (site / "a").mkdir()

        def found(index, other="<p id='x'>"):
            (site / START).write_text(index, encoding="utf-8")
            (site / "a/b.html").write_text(other, encoding="utf-8")
            return check(site)[0]

        assert found("<a href='a/b.html#x'>") == []
        assert found("<a href='a/b.html'><a href='https://elsewhere.invalid'>", "<a href='..'>") == []
        assert found("<a href='a/b.html'><img src='c.svg'>") == ["index.html: c.svg: no such file"]
        assert found("<a href='a/b.html#y'>") == ["index.html: a/b.html#y: no such place in a/b.html"]
        assert found("<a href='#top'><a href='a/b.html'>") == ["index.html: #top: no such place in index.html"]
        assert found("<p>") == ["a/b.html: no page links to it"]


def main():
    self_test()
    errors, num_pages, num_links = check(pathlib.Path(sys.argv[1]).resolve())
    for error in errors:
        print(error)
    print(f"links: {num_links} in {num_pages} pages, {len(errors)} errors")
    return 1 if errors or num_links == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
