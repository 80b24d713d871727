# Finds the page that describes a name of the library, and links names in code and comments to it.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import textwrap

import pygments
import pygments.formatters
import pygments.lexers

import headers

# Class names that are also English words, and are therefore linked only in code.
PLAIN_WORD = re.compile(r"[A-Z]?[a-z0-9]+")


def place(path):
    """Returns the path in the site of a file or folder of the tree; a README.md becomes the page of its folder."""
    relative = path.relative_to(headers.ROOT)
    if relative == pathlib.Path("README.md"):
        return pathlib.Path("index.md")
    if path.name == "README.md":
        relative = relative.parent
    if relative.parts[0] == "docs" and path.suffix in (".md", ".svg"):
        return relative.relative_to("docs")
    return pathlib.Path("tree", relative if relative.suffix in (".md", ".svg", ".png") else f"{relative}.md")


class Names:
    def __init__(self):
        self.places = {}  # name: (page, anchor)
        self.blocks = []  # code as HTML; hooks.py inserts it, because Markdown is slow on thousands of tags

    def add(self, item, page, anchor):
        """Registers an item under its full name, and under the last part if no earlier item has this name."""
        self.places.setdefault(item.name, (page, anchor))
        self.places.setdefault(item.short, (page, anchor))

    def href(self, name, page):
        target = self.places.get(name) or self.places.get(name.removeprefix("tutti::"))
        return None if target is None else ("" if target[0] == page else target[0] + ".html") + "#" + target[1]

    def target(self, name):
        """Returns page.md#anchor for a name in code quotes in a guide, Type or function(), or None."""
        plain = name.removesuffix("()")
        if plain == name and not name.rpartition("::")[2][:1].isupper():
            return None
        page, place = self.places.get(plain) or self.places.get(plain.rpartition("::")[0]) or (None, None)
        return f"{page}.md#{place}" if page else None

    def code(self, text, page, own=""):
        """Returns a block of C++ in which the library's types are links."""
        body = pygments.highlight(text, pygments.lexers.CppLexer(), pygments.formatters.HtmlFormatter(nowrap=True))

        def link(match):
            target = self.href(match.group(2), page)
            if target is None or match.group(2) == own or not match.group(2)[0].isupper():
                return match.group(0)
            return f'{match.group(1)}<a href="{target}">{match.group(2)}</a></span>'

        body = re.sub(r'(<span class="(?:n|nc|nf|nl)">)(\w+)</span>', link, body)
        self.blocks.append(f"<pre><code>{body.rstrip()}</code></pre>")
        return f'<div class="highlight declaration">{len(self.blocks) - 1}</div>\n'

    def prose(self, text, page, own=""):
        """Returns a comment as Markdown: indented lines are code, other lines are escaped text with links for names."""
        blocks = re.split(r"\n{2,}", text)
        return "\n\n".join(self.code(textwrap.dedent(each), page, own) if each.startswith("    ")
                           else self.paragraph(" ".join(each.split()), page, own) for each in blocks)

    def paragraph(self, text, page, own):
        parts = re.split(r"(`[^`]*`)", text)
        for i in range(0, len(parts), 2):
            part = re.sub(r"<", "&lt;", parts[i])
            part = re.sub(r"(?<![*\w])\*(?![*\w])|(?<=\w)\*(?=\w)", r"\\*", part)
            part = re.sub(r"(?<![\w/])_(?=\w)", r"\\_", part)
            parts[i] = re.sub(r"\b(?:\w+::)*([A-Za-z_]\w+)(\(\))?(?![\w/(])", lambda m: self.link_word(m, page, own), part)
        return re.sub(r"^(\d*)([-+.])(?= )", r"\1\\\2", "".join(parts))  # not a list

    def link_word(self, match, page, own):
        word, called = match.group(1), match.group(2)
        if word == own or (not called and "::" not in match.group(0) and PLAIN_WORD.fullmatch(word)) or (
                not called and "::" not in match.group(0) and not word[0].isupper()):
            return match.group(0)
        full = match.group(0).removesuffix("()")
        owner = full.rpartition("::")[0]
        target = self.href(full, page) or self.href(owner if owner and owner[0].isupper() else word, page)
        if target is None:
            return match.group(0)
        return f"[{match.group(0)}]({target.replace('.html#', '.md#')})"

    def summary(self, item, page):
        """Returns the first sentence of the comment, without stopping at a period in the first 20 characters."""
        text = " ".join(item.comment.split("\n\n")[0].split())
        owner = re.sub(r"(Options|Hyperparameters)$", "", item.short)
        if not text and owner != item.short:
            text = f"Options of {owner}" if item.short.endswith("Options") else f"Hyperparameters of {owner}Rule"
        for match in re.finditer(r"\.(?= |$)", text):
            part = text[: match.end()]
            is_whole = len(re.findall(r"[(\[{]", part)) == len(re.findall(r"[)\]}]", part))  # also [first, last)
            if len(part) > 20 and is_whole and not part.endswith((" .", "..", "e.g.", "i.e.", "et al.")):
                text = part
                break
        return self.paragraph(re.sub(r"(?<=[^.:]):?$", ".", text), page, item.short).replace("|", "\\|")
