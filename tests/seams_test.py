#!/usr/bin/env python3
# Checks that threads, clocks, sleep, randomness and source locations are used only through core/,
# and that only cross_device_ops/ adds values of several replicas.
# SPDX-License-Identifier: Apache-2.0
"""Usage: seams_test.py [ROOT]"""
import pathlib
import re
import sys

FORBIDDEN = {
    r"\bstd::(jthread|thread)\b": "include/tutti/core/executor.h",
    r"\bstd::this_thread\b": "include/tutti/core/clock.h",
    r"\bstd::(recursive_|shared_|timed_)?mutex\b": "include/tutti/core/sync.h",
    r"\bstd::condition_variable(_any)?\b": "include/tutti/core/sync.h",
    r"\bstd::(future|promise|async|packaged_task|latch|barrier|counting_semaphore)\b": "include/tutti/core/sync.h",
    r"\b(steady|system|high_resolution)_clock::now\b": "include/tutti/core/clock.h",
    r"\b(sleep_for|sleep_until)\(": "include/tutti/core/clock.h",
    r"\b(u|nano)?sleep\(": "include/tutti/core/clock.h",
    r"\b(s?rand|drand48|srandom)\(|\brandom\(\)": "include/tutti/core/random.h",
    r"\bstd::(mt19937(_64)?|random_device|default_random_engine)\b": "include/tutti/core/random.h",
    r"\bpthread_create\b": "include/tutti/core/executor.h",
    r"#\s*pragma\s+omp": "a plain loop",
    r"\bsocket\(": "a Transport",
    r"\bstd::source_location\b|<source_location>": "include/tutti/core/source_location.h, because clang++ 14 has no <source_location>",
}
# Code that adds values of several replicas without a cross-device operation.
ADDS_REPLICAS = {r"\b(reduce_(tensors_)?along_tree|combine_nodes|reduce_to_all)\(": "a CrossDeviceOps, such as services.ops"}
# Paths that may add values of replicas: the operations, public headers, parameter servers, tests and
# benchmarks.
MAY_ADD = ("cross_device_ops/", "include/", "strategy/parameter_server/", "testing/", "tests/", "benchmarks/")
# Sleep functions of core's Clock, which are allowed.
ALLOWED = re.compile(r"(\.|->)(sleep_for|sleep_until)\(|\bClock\b.*sleep_|sleep_until\(.*\) override")
# Programs as external users write them, with their own threads.
STRANGERS = "examples/plugins/"
# Folders that may open sockets: {folder: replacements that it need not use}.
EXEMPT = {"cluster/net": ("a Transport",), "tools/launch": ("a Transport",)}
PUBLIC = "include/tutti/"  # include/tutti/tensor belongs to tensor
FOLDERS = ("tensor", "autograd", "optimizer", "data", "cross_device_ops", "cluster", "checkpoint", "strategy", "testing", "model",
           "tools", "examples", "benchmarks", "tests")
COMMENT = re.compile(r"//.*")


def findings_in(text, may_add=True):
    found = []
    forbidden = FORBIDDEN if may_add else {**FORBIDDEN, **ADDS_REPLICAS}
    for number, line in enumerate(text.splitlines(), 1):
        code = COMMENT.sub("", line)
        for pattern, instead in forbidden.items():
            if re.search(pattern, code) and not ("sleep" in pattern and ALLOWED.search(code)):
                found.append((number, line.strip(), instead))
    return found


def self_test():
    for line in ("std::thread t;", "std::mutex m;", "auto t = std::chrono::steady_clock::now();",
                 "std::this_thread::yield();", "int i = rand();", "#pragma omp parallel", "std::async(f);"):
        assert findings_in(line), line
    for line in ("clock.sleep_for(x);", "// std::mutex", "Mutex mutex_;", "set_random(3)", "brand(1)"):
        assert not findings_in(line), line
    assert findings_in("Tensor sum = reduce_tensors_along_tree(op, values, device);", may_add=False)


def main():
    self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    num_files = num_errors = 0
    for folder in FOLDERS:
        for path in [*sorted((root / folder).rglob("*")), *sorted((root / PUBLIC / folder).rglob("*"))]:
            if path.suffix not in (".h", ".cc") or path.relative_to(root).as_posix().startswith(STRANGERS):
                continue
            num_files += 1
            exempt = EXEMPT.get(path.parent.relative_to(root).as_posix().removeprefix(PUBLIC), ())
            may_add = path.relative_to(root).as_posix().startswith(MAY_ADD)
            for number, line, instead in findings_in(path.read_text(encoding="utf-8"), may_add):
                if instead in exempt:
                    continue
                num_errors += 1
                print(f"{path.relative_to(root)}:{number}: {line}\n    use {instead}")
    print(f"seams: {num_files} files, {num_errors} errors")
    return 1 if num_errors or num_files < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
