# Reads the declarations of the public headers: the structure from Doxygen, code and comments from the source.
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLIC = ROOT / "include/tutti"
sys.path.insert(0, str(ROOT / "tests"))
import public_headers_test  # noqa: E402: which headers are public

DOXYFILE = """
INPUT = {headers}
STRIP_FROM_PATH = {root}
OUTPUT_DIRECTORY = {output}
GENERATE_XML = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
WARNINGS = NO
QUIET = YES
PREDEFINED = __cplusplus=202002 TUTTI_GUARDED_BY(x)= TUTTI_REQUIRES(...)= TUTTI_THREAD_ANNOTATION(x)=
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
"""
# Namespaces that are not part of tutti's API.
LEFT_OUT = re.compile(r"(^|::)internal(::|$)|^std(::|$)|^testing(::|$)")
ACCESS = re.compile(r"^\s*(public|protected|private):")


@dataclasses.dataclass
class Item:
    """Declaration in a public header; `name` omits the prefix tutti::."""

    name: str
    kind: str  # class, struct, union, enum, function, typedef, variable, define
    header: str
    line: int  # first line of the declaration
    declaration: str
    comment: str  # Markdown
    follows: bool = False  # true if directly below the previous declaration, whose comment then covers this one
    protection: str = "public"
    type: str = ""
    default: str = ""
    members: list = dataclasses.field(default_factory=list)

    @property
    def short(self):
        return self.name.rsplit("::", 1)[-1]

    def fields(self):
        return [m for m in self.members if m.kind == "variable" and m.protection == "public"]


class Source:
    """Lines of a header, numbered from 1."""

    def __init__(self, header):
        self.header = header
        self.lines = (PUBLIC / header).read_text(encoding="utf-8").splitlines()

    def line(self, number):
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def start(self, number):
        """Returns the first line of the declaration whose name is on line `number`."""
        while True:
            above = re.sub(r"\s*//.*", "", self.line(number - 1)).strip()
            if not above or above[-1] in ";{}:" or above.startswith("#") or above.endswith("\\"):
                return number
            number -= 1

    def declaration(self, number, kind):
        """Returns the declaration up to its body or semicolon, and the line of that body or semicolon."""
        if kind == "define":
            return re.match(r"#define \w+(\([^)]*\))?", self.line(number)).group(0), number
        if kind == "enum":
            last = next(n for n in range(number, len(self.lines) + 1) if "}" in self.line(n))
            return dedent("\n".join(self.lines[number - 1 : last])).rstrip(";"), last
        depth, text, quote = 0, "", ""
        while number <= len(self.lines):
            line = self.line(number)
            for i, char in enumerate(line):
                if quote:
                    quote = "" if char == quote and line[i - 1] != "\\" else quote
                elif char == '"' or (char == "'" and not line[i - 1 : i].isalnum()):
                    quote = char
                elif line.startswith("//", i):
                    break
                elif char in "([" or (char == "{" and (depth or kind in ("variable", "typedef"))):
                    depth += 1
                elif char in ")]}" and depth:
                    depth -= 1
                elif depth == 0:
                    is_initializer = char == ":" and ":" not in (line[i - 1 : i], line[i + 1 : i + 2])
                    if char in ";{" or (is_initializer and kind == "function"):
                        return dedent(text), number
                text += char
            text += "\n"
            number += 1
        raise SystemExit(f"{self.header}:{number}: expected `;` or a body at the end of this declaration, got the end of the file")

    def comment(self, first, last):
        """Returns the comment above the declaration, or else the comment behind it."""
        above = []
        number = first - 1
        while re.match(r"\s*//", self.line(number)) and "SPDX" not in self.line(number):
            above.insert(0, re.sub(r"^\s*///?<? ?", "", self.line(number)))
            number -= 1
        if above:
            return "\n".join(above)
        behind = re.search(r"[;,{}\w)] +// (.*)$", self.line(last))
        if not behind:
            return ""
        text, column = [behind.group(1)], behind.start(1)
        while re.match(r"\s*// ", self.line(last + 1)) and self.line(last + 1).find("// ") == column - 3:
            last += 1
            text.append(self.line(last)[column:])
        return "\n".join(text)

    def follows(self, first):
        above = self.line(first - 1).strip()
        return bool(above) and not above.startswith(("//", "#")) and above[-1:] != "{" and not ACCESS.match(above)


def dedent(text):
    lines = [line.rstrip() for line in text.strip("\n").split("\n")]
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] if not line[:margin].strip() else line for line in lines).strip()


def text_of(node):
    return re.sub(r"\s+", " ", "".join(node.itertext())).strip() if node is not None else ""


class Reader:
    def __init__(self, folder):
        self.folder = folder
        self.sources = {}

    def make(self, node, name, kind, header, line):
        source = self.sources.setdefault(header, Source(header))
        first = source.start(line)
        declaration, last = source.declaration(first, kind)
        if "@" in name:  # an unnamed enum is listed under the name of its first constant
            name = re.search(r"\{\s*(\w+)", declaration).group(1)
        return Item(name.removeprefix("tutti::"), kind, header, first, declaration, source.comment(first, last),
                    source.follows(first), node.get("prot", "public"), text_of(node.find("type")))

    def member(self, node):
        place = node.find("location")
        header, line = place.get("declfile") or place.get("file"), int(place.get("declline") or place.get("line"))
        name = text_of(node.find("qualifiedname")) or text_of(node.find("name"))
        item = self.make(node, name, node.get("kind"), header, line)
        if item.kind == "variable":
            # Splits the declaration, `int x = 1` or `int x{1}`. Pointers to functions get neither a type nor a default.
            match = re.fullmatch(rf"(.*[^(*])\b{re.escape(item.short)}\b\s*=?\s*(.*)", item.declaration, re.DOTALL)
            item.type, item.default = (re.sub(r"\s+", " ", each.strip()) for each in match.groups()) if match else ("", "")
        return item

    def compound(self, refid):
        """Returns the items of a class or namespace; a class is one item that has members."""
        node = xml.etree.ElementTree.parse(self.folder / f"{refid}.xml").getroot().find("compounddef")
        name, kind = text_of(node.find("compoundname")), node.get("kind")
        if LEFT_OUT.search(name) or "<" in name or "@" in name:
            return []
        members = [self.member(each) for each in node.findall("sectiondef/memberdef")
                   if each.get("prot") != "private" and each.get("kind") != "friend"]
        inner = [each for each in node.findall("innerclass") if each.get("prot") != "private"]
        members += [item for each in inner for item in self.compound(each.get("refid"))]
        members.sort(key=lambda item: (item.header, item.line))
        if kind not in ("class", "struct", "union"):
            return members
        place = node.find("location")
        item = self.make(node, name, kind, place.get("file"), int(place.get("line")))
        item.members = [each for each in members if not re.search(r"=\s*delete$", each.declaration)]
        return [item]


def read():
    """Returns {header: its items in source order} for the public headers that have declarations."""
    headers, _ = public_headers_test.read_headers(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        config = DOXYFILE.format(headers=" ".join(str(PUBLIC / each) for each in headers), root=PUBLIC, output=folder)
        result = subprocess.run(["doxygen", "-"], input=config, text=True, capture_output=True)
        if result.returncode:
            raise SystemExit(f"doxygen: expected exit code 0, got {result.returncode}: {result.stderr[-2000:]}")
        reader = Reader(pathlib.Path(folder) / "xml")
        index = xml.etree.ElementTree.parse(reader.folder / "index.xml").getroot()
        items = []
        for entry in index.findall("compound"):
            name = text_of(entry.find("name"))
            if entry.get("kind") == "namespace" and not LEFT_OUT.search(name):
                items += reader.compound(entry.get("refid"))
            elif entry.get("kind") == "file":  # macros, and declarations outside of namespaces
                items += file_items(reader, entry.get("refid"))
    result = {header: [] for header in headers}
    seen = set()
    for item in sorted(items, key=lambda item: item.line):
        if (item.header, item.line, item.name) not in seen and "<" not in item.name:
            seen.add((item.header, item.line, item.name))
            result[item.header].append(item)
    return {header: found for header, found in result.items() if found}


def file_items(reader, refid):
    node = xml.etree.ElementTree.parse(reader.folder / f"{refid}.xml").getroot().find("compounddef")
    outside = [each for each in node.findall("sectiondef/memberdef") if "::" not in text_of(each.find("qualifiedname"))]
    items = [reader.member(each) for each in outside if each.get("kind") in ("enum", "function", "typedef")]
    macros = [reader.member(each) for each in outside if each.get("kind") == "define"]
    items += [each for each in macros if each.comment]
    for each in node.findall("innerclass"):
        if "::" not in text_of(each):
            items += reader.compound(each.get("refid"))
    return items
