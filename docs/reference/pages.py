# Writes the pages of the reference, in Markdown, from what the headers declare.
# SPDX-License-Identifier: Apache-2.0
import fnmatch
import re

import pygments
import pygments.formatters
import pygments.lexers
import yaml

import headers

CLASSES = ("class", "struct", "union")
# Words of prose that are names of classes, too: linked only as code.
PLAIN_WORD = re.compile(r"[A-Z]?[a-z0-9]+")


def read_pages():
    with open(headers.ROOT / "docs/reference/pages.yml", encoding="utf-8") as file:
        return yaml.safe_load(file)


def page_of(pages, header):
    return next(page for page in pages if any(fnmatch.fnmatch(header, each) for each in page["headers"]))


def anchor(item):
    return re.sub(r"[^\w.]+", "-", item.name.replace("::", ".")).strip("-")


def is_shown(item):
    return not item.declaration.startswith(("}", "class " + item.short + ";")) and "operator" not in item.name


class Renderer:
    def __init__(self):
        self.pages = read_pages()
        self.items = headers.read()
        self.by_name = {each.name: each for every in self.items.values() for each in every}
        self.links = {}  # name: (page, anchor)
        for header, items in self.items.items():
            page = page_of(self.pages, header)["name"]
            for item in items:
                for each in [item, *(m for m in item.members if m.kind in (*CLASSES, "enum"))]:
                    self.links.setdefault(each.name, (page, anchor(each)))
                    self.links.setdefault(each.short, (page, anchor(each)))
        _, subjects, _, _ = headers.public_headers_test.read_lists(headers.ROOT)
        subjects.sort(key=lambda each: each != headers.public_headers_test.MAIN)
        self.subjects = {each: headers.public_headers_test.reach(headers.ROOT, [each]) for each in subjects}
        self.undocumented = []

    def href(self, name, page):
        target = self.links.get(name) or self.links.get(name.removeprefix("tutti::"))
        return None if target is None else ("" if target[0] == page else target[0] + ".html") + "#" + target[1]

    def target(self, name):
        """page.md#anchor for a name that stands as code in a guide: of a type, or name() of a function."""
        plain = name.removesuffix("()")
        if plain == name and not name.rpartition("::")[2][:1].isupper():
            return None
        page, place = self.links.get(plain) or self.links.get(plain.rpartition("::")[0]) or (None, None)
        return f"{page}.md#{place}" if page else None

    # Text

    def code(self, text, page, own=""):
        """A block of C++ in which the library's types are links."""
        body = pygments.highlight(text, pygments.lexers.CppLexer(), pygments.formatters.HtmlFormatter(nowrap=True))

        def link(match):
            target = self.href(match.group(2), page)
            if target is None or match.group(2) == own or not match.group(2)[0].isupper():
                return match.group(0)
            return f'{match.group(1)}<a href="{target}">{match.group(2)}</a></span>'

        body = re.sub(r'(<span class="(?:n|nc|nf|nl)">)(\w+)</span>', link, body)
        return f'<div class="highlight declaration"><pre><code>{body.rstrip()}</code></pre></div>\n'

    def prose(self, text, page, own=""):
        """A comment as Markdown: what is no code is escaped, names are links."""
        parts = re.split(r"(`[^`]*`)", text)
        for i, part in enumerate(parts):
            if i % 2 == 0:
                part = re.sub(r"<", "&lt;", part)
                part = re.sub(r"(?<![*\w])\*(?![*\w])|(?<=\w)\*(?=\w)", r"\\*", part)
                part = re.sub(r"(?<![\w/])_(?=\w)", r"\\_", part)
                parts[i] = re.sub(r"\b(?:\w+::)*([A-Za-z_]\w+)(\(\))?(?![\w/(])",
                                  lambda m: self.link_word(m, page, own), part)
        return re.sub(r"(?m)(?<=[^\n])\n(?=[*-] )", "\n\n", "".join(parts))

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
        """The first sentence, or its part before a colon or semicolon."""
        text = re.sub(r"\s+", " ", item.comment)
        for match in re.finditer(r"[.:;](?= |$)", text):
            part = text[: match.start()]
            if len(part) > 20 and all(part.count(a) == part.count(b) for a, b in ("()", "[]", "``")) \
                    and not part.endswith((" ..", "e.g", "i.e")):
                text = part
                break
        return self.prose(re.sub(r"(?<!\.)\.$", "", text), page, item.short).replace("|", "\\|")

    # Declarations

    def field_table(self, item, page):
        rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
        meanings = page.get("fields", {})
        for field in item.fields():
            text = re.sub(r"\s+", " ", field.comment)
            if not text:
                text = meanings.get(field.short, "")
            else:
                text = self.prose(text, page["name"], item.short)
            if not text:
                self.undocumented.append(field)
            target = self.href(re.sub(r"^std::optional<(.*)>$", r"\1", field.type), page["name"])
            kind = f"`{field.type}`".replace("|", "\\|")
            if target:
                kind = f"[{kind}]({target.replace('.html#', '.md#')})"
            default = f"`{field.default}`" if field.default else ""
            rows.append(f"| `{field.short}` | {kind} | {default} | {text} |".replace("\n", " "))
        return '<div class="fields" markdown>\n\n' + "\n".join(rows) + "\n\n</div>\n\n"

    def members(self, item, page, protection):
        """Member functions and types: those that share a comment stand in one block."""
        has_table = bool(item.fields()) and not self.has_function_pointers(item)
        out, group = [], []

        def flush():
            if group:
                text = "\n".join(each.declaration + ";" for each in group)
                out.extend(f'<span id="{anchor(each)}"></span>\n' for each in group if each.kind == "enum")
                out.append(self.code(text, page["name"], item.short))
                comment = "\n".join(each.comment for each in group if each.comment)
                if comment:
                    out.append('<div class="about" markdown>\n' + self.prose(comment, page["name"], item.short) + "\n</div>\n")
                elif not all(is_plain(each) for each in group):
                    self.undocumented += [each for each in group if not is_plain(each)]
            group.clear()

        overrides = []
        for member in item.members:
            if member.protection != protection or member.kind in CLASSES or (has_table and member.kind == "variable"):
                continue
            if re.search(r"\boverride\b", member.declaration) and not member.comment:
                overrides.append(member.short)
                continue
            if member.declaration.startswith("using Made") or "~" in member.name and not member.comment:
                continue
            if group and (member.comment or not (member.follows or (not group[-1].comment and is_plain(member)))):
                flush()
            group.append(member)
        flush()
        if overrides:
            out.append("Overrides " + ", ".join(f"`{each}`" for each in dict.fromkeys(overrides)) + ".\n")
        return "\n".join(out) + "\n" if out else ""

    def has_function_pointers(self, item):
        return any(not field.type for field in item.fields())

    def type_section(self, item, page, level):
        """A class or struct: purpose, fields in their order, members."""
        name = item.name
        out = [f"{'#' * level} {name} {{#{anchor(item)}}}\n\n"]
        head = re.sub(r"\s+", " ", item.declaration.removeprefix("typedef "))
        out.append(self.code(head if len(head) < 90 else item.declaration, page["name"], item.short) + "\n")
        if item.comment:
            out.append(self.prose(item.comment, page["name"], item.short) + "\n\n")
        elif not item.short.endswith("Options"):
            self.undocumented.append(item)
        options = self.options_of(item)
        if item.fields() and not self.has_function_pointers(item):
            out.append(self.field_table(item, page))
        out.append(self.members(item, page, "public"))
        for inner in item.members:
            if inner.kind in CLASSES:
                out.append(self.type_section(inner, page, level + 1))
        if options is not None:
            out.append(self.type_section(options, page, level + 1))
        protected = self.members(item, page, "protected")
        if protected:
            out.append(f'<p class="part">For classes derived from it</p>\n\n{protected}')
        return "".join(out)

    def options_of(self, item):
        """The options that a class is made from: these stand in its section, if their page is the same."""
        options = self.by_name.get(item.name + "Options")
        if options is None or item.kind not in (*CLASSES, "typedef"):
            return None
        texts = [item.declaration, *(each.declaration for each in item.members if each.short == item.short)]
        uses = any(re.search(rf"\b{options.short}\b", text) for text in texts)
        return options if uses and page_of(self.pages, options.header) is page_of(self.pages, item.header) else None

    def groups(self, items):
        """Functions that share a comment, or a name and follow each other, are one entry; others stand alone."""
        result = []
        for item in items:
            last = result[-1][-1] if result else None
            joins = last is not None and item.kind == last.kind and last.header == item.header and not item.comment
            if joins and item.kind in ("function", "typedef", "variable", "enum") and item.follows:
                result[-1].append(item)
            elif last is not None and item.kind == last.kind == "function" and item.name == last.name:
                result[-1].append(item)
            else:
                result.append([item])
        return result

    def page(self, page):
        items = [item for header, each in sorted(self.items.items(), key=lambda pair: self.rank(page, pair[0]))
                 for item in each if page_of(self.pages, header) is page]
        if not items:
            return ""
        owned = {options.name for options in map(self.options_of, items) if options is not None}
        items = [item for item in items if item.name not in owned]
        rows, sections, subject = [], [], ""
        for group in self.groups([item for item in items if is_shown(item)]):
            first = group[0]
            names = list(dict.fromkeys(each.name for each in group))
            links = ", ".join(f"[`{each.name}`](#{anchor(each)})" for each in unique(group))
            if self.subject(first.header) != subject:
                subject = self.subject(first.header)
                rows.append(f"\n`#include \"tutti/{subject}\"`\n\n| name | what |\n|---|---|")
            rows.append(f"| {links} | {self.summary(first, page['name'])} |")
            if first.kind in CLASSES:
                sections.append(self.type_section(first, page, 3))
                continue
            spans = "".join(f'<span id="{anchor(each)}"></span>' for each in unique(group)[1:])
            title = ", ".join(names)
            sections.append(f"### {title} {{#{anchor(first)}}}\n\n{spans}\n\n")
            sections.append(self.code("\n".join(each.declaration + ";" for each in group), page["name"]) + "\n")
            comment = "\n\n".join(each.comment for each in group if each.comment)
            if comment:
                sections.append(self.prose(comment, page["name"]) + "\n\n")
            else:
                self.undocumented += group
            options = self.options_of(first)
            if options is not None:
                sections.append(self.type_section(options, page, 4))
        return (f"# {page['title']}\n\n{page['intro'].strip()}\n\n" + "\n".join(rows) + "\n\n" + "\n".join(sections))

    def rank(self, page, header):
        fits = [i for i, each in enumerate(page["headers"]) if fnmatch.fnmatch(header, each)]
        subjects = [*self.subjects, header]
        return (subjects.index(self.subject(header)), min(fits, default=len(page["headers"])), header)

    def subject(self, header):
        """What a program includes: the subject that leads to the header, tutti.h if it does."""
        return next((each for each, reached in self.subjects.items() if header in reached), header)

    def index(self):
        """Every name, by letter."""
        entries = {}
        for header, items in self.items.items():
            page = page_of(self.pages, header)["name"]
            for item in items:
                if is_shown(item):
                    entries.setdefault(item.name, (page, item))
        out, letter = ["# Index\n"], ""
        for name, (page, item) in sorted(entries.items(), key=lambda pair: (pair[1][1].short.lower(), pair[0])):
            if item.short[0].upper() != letter:
                letter = item.short[0].upper()
                out.append(f"\n## {letter}\n\n| name | kind | what |\n|---|---|---|")
            out.append(f"| [`{name}`]({page}.md#{anchor(item)}) | {item.kind} | {self.summary(item, 'all_names')} |")
        return "\n".join(out) + "\n"


def is_plain(item):
    """What its name says: constructors that take nothing, operators, names of types."""
    short = item.short
    return bool(re.search(r"operator|= default$|\(\)( const)?( noexcept)?$", item.declaration) or item.kind == "typedef"
                or item.name.split("::")[-2:-1] == [short] or "~" in short)


def unique(group):
    return list({each.name: each for each in group}.values())
