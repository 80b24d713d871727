# Collects the programs of a build for a check on another machine.
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import programs

LIMIT = 60 * 2**20  # maximum size of the archive, in bytes
# Libraries that belong to every Linux system or to the machine with the GPU, so they are not
# packed.
NOT_TAKEN = re.compile(r"(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|resolv|util)\.so)")
SCRIPTS = ("benchmarks/gpu/gpu_check", "benchmarks/gpu/check/*.py", "benchmarks/gpu/resnet_torch.py")


def output_of(*command):
    try:
        return subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def shared_libraries(path):
    """Returns the libraries that ldd lists for a program, without those of the system and of CUDA."""
    found = []
    for line in output_of("ldd", path).splitlines():
        match = re.match(r"\s*(\S+) => (/\S+)", line)
        if match and not NOT_TAKEN.match(match.group(1)) and not programs.CUDA_LIBRARIES.match(match.group(1)):
            found.append(pathlib.Path(match.group(2)))
    return found


def copy_stripped(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source.resolve(), target)
    os.chmod(target, 0o755)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", str(target)], capture_output=True, check=False)


def pack(build, target):
    """Packs the programs. Returns 0, or 1 after printing an error."""
    source = pathlib.Path(__file__).resolve().parents[3]
    binaries = [build / "bin" / name for name in programs.NAMES]
    missing = [path for path in binaries if not path.exists()]
    module = build / "lib" / "libtutti_cuda.so"
    if missing or not module.exists():
        print(f"gpu_check: --pack: {(missing or [module])[0]} does not exist; build it first: "
              f"cmake --build {build} --target {' '.join(programs.TARGETS)}", file=sys.stderr)
        return 1
    if target.exists() and any(target.iterdir()) and not (target / programs.MANIFEST).exists():
        print(f"gpu_check: --pack: {target} contains other files; expected a new or empty folder", file=sys.stderr)
        return 1
    shutil.rmtree(target, ignore_errors=True)
    binaries += [path for path in [build / "bin" / "test_gpu"] if path.exists()]
    modules = [module] + [path for folder in ("lib", "tests/cuda_simulation", "bin")
                          for path in [build / folder / "libtutti_cuda_simulated.so"] if path.exists()]
    for path in binaries:
        copy_stripped(path, target / "bin" / path.name)
    for path in modules:
        copy_stripped(path, target / "lib" / path.name)
    for path in dict.fromkeys(library for each in binaries + modules for library in shared_libraries(each)):
        copy_stripped(path, target / "lib" / path.name)
    for pattern in SCRIPTS:
        for path in sorted(source.glob(pattern)):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
    return finish(source, target, modules[0])


def finish(source, target, module):
    version = output_of("git", "-C", source, "describe", "--always", "--dirty") or "unknown revision"
    doctor = output_of(target / "bin" / "tutti", "doctor").splitlines()
    manifest = {"revision": version, "needed": programs.linked_cuda_libraries(module),
                "compiler": next((" ".join(line.split()[2:]) for line in doctor if line.split()[1:2] == ["tutti"]), "unknown build"),
                "files": sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())}
    (target / programs.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"gpu_check: {len(manifest['files'])} files, {size / 2**20:.1f} MiB in {target}; on the other machine, run {target.name}/benchmarks/gpu/gpu_check")
    archive = target.with_name(target.name + ".tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        tar.add(target, arcname=target.name)
    size = archive.stat().st_size
    print(f"gpu_check: archive of these files: {archive}, {size / 2**20:.1f} MiB; on the other machine, run tar -xf {archive.name}")
    if size > LIMIT:
        print(f"gpu_check: --pack: expected an archive of at most {LIMIT // 2**20} MiB; try a build with -DTUTTI_ONEDNN=OFF", file=sys.stderr)
        return 1
    return 0
