#!/usr/bin/env python3
# Checks the headers that programs may include: those in include/tutti.
# SPDX-License-Identifier: Apache-2.0
"""Usage: public_headers_test.py [ROOT]

Everything in include/tutti is installed. A public header includes public headers and those of other libraries, but no
private header. The subjects are tutti.h and the headers next to it. Each other public header is included by a subject,
directly or indirectly, or is in ON_THEIR_OWN. tutti.h has at most 20 includes. Headers with only namespace tutti::internal
are not public, except if public templates need them. The examples, projects that use an installed tutti, and programs
in the documentation include only public headers.
"""
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
PUBLIC_NAMESPACE = re.compile(r"^namespace tutti(::(?!internal)\w+)* \{", re.MULTILINE)
INTERNAL_NAMESPACE = re.compile(r"^namespace tutti::internal \{", re.MULTILINE)
PROGRAM = re.compile(r"^```cpp[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
STRANGERS = ("examples", "tests/install")
MAIN = "tutti.h"
MOST_INCLUDES = 20
# Public headers that no subject includes.
ON_THEIR_OWN = (
    "autograd/recompute.h", "autograd/replica_group.h", "checkpoint/checkpoint_versions.h", "checkpoint/safetensors.h",
    "core/logging.h", "core/trace.h", "cross_device_ops/gradient_ops.h", "cross_device_ops/plugin_abi.h", "model/generate.h",
    "optimizer/gradient_reducer.h", "optimizer/update_rule_spec.h", "tensor/numerics.h",
    "testing/cross_device_ops/conformance_gtest.h", "testing/cross_device_ops/report.h", "testing/strategy/strategy_gtest.h",
    "testing/strategy/suite.h",
)
# Headers of namespace tutti::internal that public templates need, with the reason.
TEMPLATES = {
    "core/fields.h": "json_of() uses it to write and read the members of options; register_layer() and similar functions use it to name types",
    "core/thread_scope.h": "scopes such as VariableCreatorScope derive from it",
    "strategy/parameter_server/coordinator/step_registry.h": "define() makes a step from any function",
}


def read_headers(root):
    """Returns the names of the public headers, such as "strategy/strategy.h", and the subjects among them."""
    place = root / "include/tutti"
    headers = sorted(path.relative_to(place).as_posix() for path in place.rglob("*.h"))
    return headers, [header for header in headers if "/" not in header]


def includes_of(root, header):
    """Returns the includes of the public header, as written."""
    path = root / "include/tutti" / header
    return INCLUDE.findall(path.read_text(encoding="utf-8")) if path.is_file() else []


def reach(root, start):
    """Returns {header: a header that includes it}."""
    found, waiting = {}, [(header, "") for header in start]
    while waiting:
        header, by = waiting.pop()
        if header in found:
            continue
        found[header] = by
        waiting += [(include.removeprefix("tutti/"), header) for include in includes_of(root, header) if include.startswith("tutti/")]
    return found


def private_includes(root, includes, headers):
    """Returns the includes of files of the tree that programs cannot include."""
    return [include for include in includes
            if (include.removeprefix("tutti/") not in headers if include.startswith("tutti/") else
                (root / include).is_file() and not include.startswith("examples/"))]


def check_users(root, headers):
    texts = [(path, path.read_text(encoding="utf-8"))
             for folder in STRANGERS for path in sorted((root / folder).rglob("*")) if path.suffix in (".h", ".c", ".cc")]
    for path in [*sorted((root / "docs").glob("*.md")), root / "README.md"]:
        if path.exists():
            texts += [(path, program) for program in PROGRAM.findall(path.read_text(encoding="utf-8"))]
    return [f"{path.relative_to(root)} includes {header}, which is not installed"
            for path, text in texts for header in private_includes(root, INCLUDE.findall(text), headers)]


def check(root, alone=ON_THEIR_OWN):
    headers, subjects = read_headers(root)
    errors = []
    for header in headers:
        for include in private_includes(root, includes_of(root, header), headers):
            errors.append(f"{header} is public and includes {include}, which is not; declare what it needs in the header "
                          "itself, or move the included header to include/tutti")
    led_to = reach(root, subjects)
    for header in sorted(set(headers) - set(reach(root, [*subjects, *alone]))):
        errors.append(f"no subject includes {header}; add it to ON_THEIR_OWN in tests/public_headers_test.py, or move it out of include/tutti")
    for header in alone:
        if header not in headers:
            errors.append(f"ON_THEIR_OWN: include/tutti/{header} does not exist")
        elif header in led_to:
            errors.append(f"ON_THEIR_OWN: {led_to[header]} includes {header}; remove it from this list")
    for header in headers:
        text = (root / "include/tutti" / header).read_text(encoding="utf-8")
        is_internal = bool(INTERNAL_NAMESPACE.search(text)) and not PUBLIC_NAMESPACE.search(text)
        if is_internal and header not in TEMPLATES:
            errors.append(f"{header}: expected public names, got only names in tutti::internal; move it out of include/tutti")
    errors += check_users(root, headers)
    count = len([include for include in includes_of(root, MAIN) if include.startswith("tutti/")])
    if count > MOST_INCLUDES:
        errors.append(f"{MAIN}: {count} includes; expected at most {MOST_INCLUDES}; include some of these headers in another subject instead")
    return errors, len(headers), len(subjects)


def self_test():
    """Tests that the check detects planted errors."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(name, text):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")

        def found(words, alone=("a/c.h",)):
            errors = check(root, alone)[0]
            assert len(errors) == 1 and words in errors[0], (words, errors)

        write("include/tutti/tutti.h", '#include "tutti/a/a.h"\n')
        write("include/tutti/a/a.h", "#include <third/party.h>\nnamespace tutti {\n}\n")
        write("include/tutti/a/c.h", "extern int c;\n")
        write("a/b.h", "namespace tutti::internal {\n}\n")
        assert check(root, ["a/c.h"]) == ([], 3, 1), check(root, ["a/c.h"])
        for include in ("a/b.h", "tutti/a/b.h"):
            write("include/tutti/a/a.h", f'#include "{include}"\nnamespace tutti {{\n}}\n')
            found(f"a/a.h is public and includes {include}, which is not")
        write("include/tutti/a/b.h", "namespace tutti::internal {\n}\n")
        found("got only names in tutti::internal")
        (root / "include/tutti/a/b.h").unlink()
        write("include/tutti/a/a.h", "namespace tutti {\n}\n")
        found("no subject includes a/c.h", [])
        found("tutti.h includes a/a.h; remove it from this list", ["a/a.h", "a/c.h"])
        found("a/d.h does not exist", ["a/c.h", "a/d.h"])
        for include in ("a/b.h", "tutti/a/b.h"):
            write("README.md", f'```cpp\n#include "{include}"\n```\n')
            found(f"README.md includes {include}, which is not installed")
        write("README.md", "")
        write("examples/b.h", "")
        write("examples/a.cc", '#include "examples/b.h"\n#include "a/b.h"\n')
        found("examples/a.cc includes a/b.h, which is not installed")
        write("examples/a.cc", "")
        write("include/tutti/tutti.h", '#include "tutti/a/a.h"\n' * (MOST_INCLUDES + 1))
        found("expected at most 20")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    self_test()
    errors, count, subjects = check(root)
    for error in errors:
        print(error)
    if not errors:
        print(f"public headers: {count}, of which {subjects} are subjects")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
