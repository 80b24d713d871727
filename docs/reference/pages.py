# Writes the pages of the reference, in Markdown, from the declarations in the headers.
# SPDX-License-Identifier: Apache-2.0
import fnmatch
import re

import yaml

import headers
import names
import programs

CLASSES = ("class", "struct", "union")
GROUPS = ("Classes", "Functions", "Base classes", "Options and structs", "Types", "Constants")


def read_pages():
    with open(headers.ROOT / "docs/reference/pages.yml", encoding="utf-8") as file:
        return yaml.safe_load(file)


def page_of(pages, header):
    for page in pages:
        if any(fnmatch.fnmatch(header, each) for each in page["headers"]):
            return page
    raise SystemExit(f"docs/reference/pages.yml: expected a page for {header}, got none")


def anchor(item):
    return re.sub(r"[^\w.]+", "-", item.name.replace("::", ".")).strip("-")


def is_shown(item):
    return not item.declaration.startswith(("}", "class " + item.short + ";")) and "operator" not in item.name


class Renderer:
    def __init__(self):
        self.pages = read_pages()
        self.items = headers.read()
        self.by_name = {each.name: each for every in self.items.values() for each in every}
        self.names = names.Names()
        for header, items in self.items.items():
            page = page_of(self.pages, header)["name"]
            for item in items:
                for each in [item, *(m for m in item.members if m.kind in (*CLASSES, "enum"))]:
                    self.names.add(each, page, anchor(each))
        _, subjects = headers.public_headers_test.read_headers(headers.ROOT)
        subjects.sort(key=lambda each: each != headers.public_headers_test.MAIN)
        self.subjects = {each: headers.public_headers_test.reach(headers.ROOT, [each]) for each in subjects}
        self.silent = []  # declarations without a comment
        self.leaders = {}  # name: the declaration whose comment also covers this name
        self.programs = programs.Programs()

    def field_table(self, item, page):
        rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
        meanings = page.get("fields", {})
        for field in item.fields():
            text = re.sub(r"\s+", " ", field.comment)
            if not text:
                key = next((each for each in meanings if fnmatch.fnmatchcase(field.short, each)), None)
                text = meanings[key].format(field.short.partition("_")[0]) if key else ""
            else:
                text = self.names.paragraph(text, page["name"], item.short)
            target = self.names.href(re.sub(r"^std::optional<(.*)>$", r"\1", field.type), page["name"])
            kind = f"`{field.type}`".replace("|", "\\|")
            if target:
                kind = f"[{kind}]({target.replace('.html#', '.md#')})"
            default = f"`{field.default}`" if field.default else ""
            rows.append(f"| `{field.short}` | {kind} | {default} | {text} |".replace("\n", " "))
        return '<div class="fields" markdown>\n\n' + "\n".join(rows) + "\n\n</div>\n\n"

    def members(self, item, page, protection):
        """Returns the member functions and types; members that share a comment are in one block."""
        has_table = bool(item.fields()) and not self.has_function_pointers(item)
        out, group = [], []

        def flush():
            if group:
                text = "\n".join(map(terminated, group))
                out.extend(f'<span id="{anchor(each)}"></span>\n' for each in group if each.kind == "enum")
                out.append(self.names.code(text, page["name"], item.short))
                comment = "\n".join(each.comment for each in group if each.comment)
                if comment:
                    out.append('<div class="about" markdown>\n' + self.names.prose(comment, page["name"], item.short) + "\n</div>\n")
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
        """Returns the section of a class or struct: purpose, fields in declaration order, members."""
        name = item.name
        out = [f"{'#' * level} {name} {{#{anchor(item)} data-toc-label=\"{item.short}\"}}\n\n"]
        head = re.sub(r"\s+", " ", item.declaration.removeprefix("typedef "))
        if head != f"{item.kind} {item.short}":
            out.append(self.names.code(head if len(head) < 90 else item.declaration, page["name"], item.short) + "\n")
        if item.comment:
            out.append(self.names.prose(item.comment, page["name"], item.short) + "\n\n")
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
        """Returns the options struct of a class or alias if both have the same page, so that it is shown in the same section."""
        options = self.by_name.get(item.name + "Options")
        if options is None or item.kind not in (*CLASSES, "typedef"):
            return None
        texts = [item.declaration, *(each.declaration for each in item.members if each.short == item.short)]
        uses = any(re.search(rf"\b{options.short}\b", text) for text in texts)
        return options if uses and page_of(self.pages, options.header) is page_of(self.pages, item.header) else None

    def groups(self, items):
        """Groups adjacent functions that share a comment or a name; each group or single item is one entry."""
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

    def group(self, item, page):
        """Returns the group of GROUPS for an item. An alias of a class, such as Adam, counts as a class."""
        alias = re.search(r"^using \w+ = (\w+)", item.declaration)
        if any(fnmatch.fnmatchcase(item.short, each) for each in page.get("bases", [])):
            return "Base classes"
        if item.kind == "struct" and not any(each.kind == "function" and each.short != item.short for each in item.members):
            return "Options and structs"
        if item.kind in CLASSES or (alias and self.by_name.get(alias.group(1), item).kind in CLASSES):
            return "Classes"
        return {"function": "Functions", "variable": "Constants", "define": "Constants"}.get(item.kind, "Types")

    def page(self, page):
        """Returns the text of a page: an example, tables of all names, and a section for each name."""
        items = [item for header, each in sorted(self.items.items(), key=lambda pair: self.rank(page, pair[0]))
                 for item in each if page_of(self.pages, header) is page]
        if not items:
            return ""
        owned = {options.name for options in map(self.options_of, items) if options is not None}
        entries = self.groups([item for item in items if item.name not in owned and is_shown(item)])
        entries.sort(key=lambda entry: GROUPS.index(self.group(entry[0], page)))
        code, path, title = self.programs.example(page["example"])
        tables = [f"# {page['title']}\n\n{page['intro'].strip()}\n\n## Example\n\n{self.names.code(code, page['name'])}\n"
                  f"From [{title}](../{names.place(path)})."]
        sections, group, subject = [], "", ""
        for entry in entries:
            first = entry[0]
            self.leaders.update((each.name, first) for each in entry)
            if self.group(first, page) != group:
                group, subject = self.group(first, page), ""
                sections.append(f"## {group}\n")
            if self.subject(first.header) != subject:
                subject = self.subject(first.header)
                tables.append(f'\n**{group}** of `#include "tutti/{subject}"`\n\n| name | what |\n|---|---|')
            links = ", ".join(f"[`{each.name}`](#{anchor(each)})" for each in unique(entry))
            summary = self.names.summary(first, page["name"])
            tables.append(f"| {links} | {summary} |")
            if not summary:
                self.silent += entry
            sections.append(self.section(entry, page))
        return "\n".join([tables[0], '\n<div class="names" markdown>', *tables[1:], "\n</div>\n", *sections])

    def section(self, entry, page):
        first = entry[0]
        if first.kind in CLASSES:
            return self.type_section(first, page, 3)
        spans = "".join(f'<span id="{anchor(each)}"></span>' for each in unique(entry)[1:])
        title = ", ".join(each.name for each in unique(entry))
        label = ", ".join(each.short for each in unique(entry))
        comment = "\n\n".join(each.comment for each in entry if each.comment)
        options = self.options_of(first)
        return (f'### {title} {{#{anchor(first)} data-toc-label="{label}"}}\n\n{spans}\n\n'
                + self.names.code("\n".join(map(terminated, entry)), page["name"]) + "\n"
                + self.names.prose(comment, page["name"]) + "\n\n"
                + (self.type_section(options, page, 4) if options is not None else ""))

    def rank(self, page, header):
        fits = [i for i, each in enumerate(page["headers"]) if fnmatch.fnmatch(header, each)]
        subjects = [*self.subjects, header]
        return (subjects.index(self.subject(header)), min(fits, default=len(page["headers"])), header)

    def subject(self, header):
        """Returns the header that a program includes to get `header`: tutti.h if possible."""
        return next((each for each, reached in self.subjects.items() if header in reached), header)

    def index(self):
        """Returns the index of all names by first letter. Call it after page(), which fills `leaders`."""
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
                end = "\n</div>\n" if len(out) > 1 else ""
                out.append(f'{end}\n## {letter}\n\n<div class="names" markdown>\n\n| name | kind | what |\n|---|---|---|')
            kind = {"typedef": "alias", "define": "macro"}.get(item.kind, item.kind)
            what = self.names.summary(self.leaders.get(name, item), "all_names")
            out.append(f"| [`{name}`]({page}.md#{anchor(item)}) | {kind} | {what} |")
        return "\n".join(out) + "\n\n</div>\n"


def is_plain(item):
    """Returns true if a member needs no comment: default constructors, operators, type aliases."""
    short = item.short
    return bool(re.search(r"operator|= default$|\(\)( const)?( noexcept)?$", item.declaration) or item.kind == "typedef"
                or item.name.split("::")[-2:-1] == [short] or "~" in short)


def terminated(item):
    return item.declaration + ("" if item.kind == "define" else ";")


def unique(group):
    return list({each.name: each for each in group}.values())
