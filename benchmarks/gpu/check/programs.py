# Finds or builds the programs, finds the libraries that they need, and sets their environment.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import rows

MANIFEST = "gpu_check_pack.json"
NAMES = ("tutti", "device_check", "train_resnet", "gpu_bench")
TARGETS = ("tutti_cli", "tutti_cuda", "device_check", "train_resnet", "gpu_bench")
# Libraries that are opened by name, in addition to those with which the module is linked.
OPENED_LATER = ("libnccl.so.2",)
CUDA_LIBRARIES = re.compile(r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc|nvJitLink)\.so")


class Place:
    """Build or pack that is checked: its paths, devices and environment."""

    def __init__(self, flags, root, packed):
        self.flags, self.root, self.packed = flags, root, packed
        self.source = pathlib.Path(__file__).resolve().parents[3]
        self.simulated = flags.simulate
        self.tiny = flags.simulate or flags.on_cpu
        self.gpu = "cpu:1" if flags.on_cpu else "gpu:0"
        self.num_gpus, self.gpu_bytes = 0, 80e9  # until the row devices has queried them
        self.library_folders, self.nccl = [], ""
        self.nvcc, self.torch = None, None  # torch: the version, once queried
        self.architectures = []             # compute capabilities of the GPUs, such as "90"

    def program(self, name):
        return self.root / "bin" / name

    def peer(self):
        return self.source / "benchmarks" / "gpu" / "resnet_torch.py"

    def module(self):
        if self.simulated:
            for folder in ("lib", "tests/cuda_simulation", "bin"):
                path = self.root / folder / "libtutti_cuda_simulated.so"
                if path.exists():
                    return path
            return self.root / "lib" / "libtutti_cuda_simulated.so"
        return self.root / "lib" / "libtutti_cuda.so"

    def logical(self, count):
        """Returns the names of the devices if `count` replicas share one GPU."""
        if self.flags.on_cpu:
            return f"cpu:0-{count - 1}"
        return f"gpu:0-{count - 1}"

    def all_gpus(self):
        return f"gpu:0-{self.num_gpus - 1}" if self.num_gpus > 1 else "gpu:0"

    def environment(self, virtual_gpus=1, **more):
        env = dict(os.environ)
        folders = [str(self.root / "lib")] if self.packed else []
        folders += self.library_folders
        if env.get("LD_LIBRARY_PATH"):
            folders.append(env["LD_LIBRARY_PATH"])
        if folders:
            env["LD_LIBRARY_PATH"] = ":".join(folders)
        env.setdefault("TUTTI_LOG_LEVEL", "warning")
        if not self.flags.on_cpu:
            env["TUTTI_CUDA_MODULE"] = str(self.module())
        if self.simulated:
            env.setdefault("TUTTI_SIMULATED_GPUS", "2")
            env["TUTTI_NCCL_LIBRARY"] = str(self.module())
        elif self.nccl:
            env["TUTTI_NCCL_LIBRARY"] = self.nccl
        if virtual_gpus > 1:
            env["TUTTI_VIRTUAL_GPUS"] = str(virtual_gpus)
        env.update(more)
        return env


def find(flags, here, runner, table):
    """Adds rows about the programs to the table. Returns the place, or None if nothing can be run."""
    own = here.parents[1]
    if flags.prebuilt or (not flags.build and (own / MANIFEST).exists()):
        place = Place(flags, pathlib.Path(flags.prebuilt or own).resolve(), packed=True)
    else:
        place = Place(flags, pathlib.Path(flags.build or own / "build-gpu").resolve(), packed=False)
    if place.packed and not (place.root / MANIFEST).exists():
        table.add(rows.failed(f"{place.root} is not a pack; expected a folder that benchmarks/gpu/gpu_check --pack created; use --build for "
                              "a build folder"), "programs")
        return None
    usable = True
    if not flags.on_cpu and not flags.simulate:
        driver = driver_row(place, runner)
        usable = driver.verdict == rows.PASS
        table.add(driver, "driver")
        table.add(toolkit_row(place, runner), "toolkit")
    missing = [name for name in NAMES if not place.program(name).exists()]
    if missing and place.packed:
        table.add(rows.failed(f"{place.root}: no program {missing[0]}; expected what benchmarks/gpu/gpu_check --pack collects"),
                  "programs")
        return None
    if missing and not (usable and build(place, runner, table)):
        return None
    table.add(programs_row(place), "programs")
    if not flags.on_cpu:
        if not place.module().exists():
            table.add(rows.failed(f"{place.module()} does not exist: this build has no GPU module (CUDA was not found)"),
                      "libraries")
            return None
        if not flags.simulate:
            table.add(libraries_row(place), "libraries")
    return place if usable else None


def programs_row(place):
    if not place.packed:
        return rows.passed(f"build {place.root}")
    manifest = json.loads((place.root / MANIFEST).read_text(encoding="utf-8"))
    return rows.passed(f"packed: {manifest['revision']}, {manifest['compiler']}", manifest=manifest)


def driver_row(place, runner):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return rows.failed("no NVIDIA driver: libcuda.so.1 cannot be opened; install the driver, or start the container "
                           "with its GPUs (--gpus all)")
    smi = shutil.which("nvidia-smi")
    if not smi:
        return rows.passed("libcuda.so.1 opens; nvidia-smi is not installed")
    outcome = runner.run([smi, "--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader"], limit=30)
    if not outcome.ok():
        return rows.failed(outcome.why(), outcome.tail())
    found = outcome.output.strip().splitlines()
    if not found:
        return rows.failed("nvidia-smi lists no GPU")
    place.architectures = sorted({words[2].strip().replace(".", "") for words in (line.split(",") for line in found)
                                  if len(words) > 2 and re.fullmatch(r"\d+\.\d", words[2].strip())})
    return rows.passed(f"{len(found)} x {found[0]}", gpus=found)


def toolkit_row(place, runner):
    for path in (os.environ.get("CUDACXX"), shutil.which("nvcc"), *sorted(glob.glob("/usr/local/cuda*/bin/nvcc"))):
        if path and os.access(path, os.X_OK):
            outcome = runner.run([path, "--version"], limit=30)
            release = re.search(r"release ([0-9.]+)", outcome.output)
            if outcome.ok() and release:
                place.nvcc = path
                return rows.passed(f"nvcc {release.group(1)} ({path})")
    why = "nvcc was not found (PATH, /usr/local/cuda*/bin)"
    if place.packed or place.program("tutti").exists():
        return rows.skipped(why + "; not needed, the programs are built")
    return rows.failed(why + "; install the CUDA toolkit, or build elsewhere and use --pack and --prebuilt")


def wheel_folders(python):
    """Returns the lib folders of the nvidia wheels that a Python has."""
    code = ("import importlib.util as u, glob, os\n"
            "s = u.find_spec('nvidia')\n"
            "for p in (list(s.submodule_search_locations) if s else []):\n"
            "    print('\\n'.join(sorted(glob.glob(os.path.join(p, '*', 'lib')))))\n")
    try:
        found = subprocess.run([python, "-c", code], text=True, capture_output=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in found.splitlines() if line]


def library_places(place):
    """Returns the folders that may contain CUDA's libraries, in the order in which they are searched."""
    folders = []
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *sorted(glob.glob("/usr/local/cuda*"))):
        if root:
            folders += [os.path.join(root, part) for part in ("lib64", "lib", "targets/x86_64-linux/lib")]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for python in dict.fromkeys((place.flags.python, sys.executable, shutil.which("python3"), shutil.which("python"))):
        if python:
            folders += wheel_folders(python)
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    return [folder for folder in dict.fromkeys(folders) if folder and os.path.isdir(folder)]


def needed_libraries(place):
    """Returns the names of CUDA's libraries with which the module is linked."""
    if place.packed:
        manifest = json.loads((place.root / MANIFEST).read_text(encoding="utf-8"))
        return manifest["needed"]
    return linked_cuda_libraries(place.module())


def linked_cuda_libraries(module):
    for command, pattern in ((["readelf", "-d"], r"\(NEEDED\).*\[(.*)\]"), (["objdump", "-p"], r"NEEDED\s+(\S+)")):
        try:
            text = subprocess.run(command + [str(module)], text=True, capture_output=True, timeout=30).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        return [name for name in re.findall(pattern, text) if CUDA_LIBRARIES.match(name)]
    return []


def libraries_row(place):
    needed = list(dict.fromkeys(needed_libraries(place) + list(OPENED_LATER)))
    folders, found, missing = library_places(place), {}, []
    for name in needed:
        where = next((folder for folder in folders if os.path.exists(os.path.join(folder, name))), None)
        if where:
            found[name] = where
        else:
            missing.append((name, other_versions(name, folders)))
    place.library_folders = list(dict.fromkeys(found.values()))
    if "libnccl.so.2" in found:
        place.nccl = os.path.join(found["libnccl.so.2"], "libnccl.so.2")
    if missing:
        name, others = missing[0]
        have = f"; found {', '.join(others)}" if others else ""
        return rows.failed(f"{name} was not found{have}; install that version (CUDA's apt packages, or the pip wheels "
                           "that PyTorch uses)", "\n".join(f"{n}: not found{': ' + ', '.join(o) if o else ''}" for n, o in missing)
                           + "\nlooked in:\n" + "\n".join(folders), libraries=found)
    return rows.passed(", ".join(f"{name} in {folder}" for name, folder in list(found.items())[:1])
                       + (f" and {len(found) - 1} more" if len(found) > 1 else ""), libraries=found)


def other_versions(name, folders):
    base = name.split(".so")[0] + ".so*"
    return sorted({os.path.basename(path) for folder in folders for path in glob.glob(os.path.join(folder, base))})[:4]


def unversioned_links(place):
    """Creates a folder with a link libX.so to each libX.so.N of the wheels, which lack unversioned names. Returns its path."""
    folder = place.root / "wheel_libraries"
    folder.mkdir(parents=True, exist_ok=True)
    for source in wheel_folders(place.flags.python):
        for path in glob.glob(os.path.join(source, "lib*.so.*")):
            link = folder / (os.path.basename(path).split(".so")[0] + ".so")
            if not link.exists():
                link.symlink_to(path)
    return folder


def build(place, runner, table):
    """Configures and builds the programs that are needed, and adds a row to the table. Returns true on success."""
    source = place.source
    if not (source / "CMakeLists.txt").exists():
        table.add(rows.failed(f"{place.root}: the programs are missing, and there is no source to build them from"), "build")
        return False
    if place.nvcc is None and not place.tiny:
        table.add(rows.failed("not built: there is no nvcc (see the row toolkit)"), "build")
        return False
    wheels = [str(pathlib.Path(folder).parent / "include") for folder in wheel_folders(place.flags.python)]
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTUTTI_BUILD_TESTS=OFF", "-DTUTTI_BUILD_EXAMPLES=OFF",
               "-DTUTTI_BUILD_BENCHMARKS=ON", f"-DTUTTI_CUDA={'AUTO' if place.tiny else 'ON'}", "-DTUTTI_PNG=OFF", "-DTUTTI_JPEG=OFF",
               "-DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON",
               f"-DCMAKE_LIBRARY_PATH={unversioned_links(place)}", "-DCMAKE_INCLUDE_PATH=" + ";".join(wheels)]
    if place.nvcc:
        options.append(f"-DCUDAToolkit_ROOT={pathlib.Path(place.nvcc).parent.parent}")
    if place.architectures:
        options.append("-DCMAKE_CUDA_ARCHITECTURES=" + ";".join(f"{number}-real" for number in place.architectures))
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    seconds = 1800
    runner.begin_build("build", seconds)
    for command in (["cmake", "-S", source, "-B", place.root, *generator, *options],
                    ["cmake", "--build", place.root, "-j", str(os.cpu_count() or 2), "--target", *TARGETS]):
        outcome = runner.run(command, limit=seconds)
        if not outcome.ok():
            table.add(rows.failed(build_problem(outcome), outcome.tail(60)), "build")
            return False
    runner.restart_budget()
    table.add(rows.passed(f"built {place.root}"), "build")
    return True


def build_problem(outcome):
    """Returns the line of the output that explains the error, such as CMake's line about packages to install."""
    text = outcome.output + outcome.errors
    for pattern in (r"needs libraries that were not found: (.*)", r"^.*TUTTI_CUDA=ON, but not all of it was found.*$",
                    r"^.*\berror: .*$", r"^CMake Error.*$"):
        match = re.search(pattern, text, re.MULTILINE)
        if match:
            return f"not built: {match.group(0).strip()}; or build elsewhere: benchmarks/gpu/gpu_check --pack DIR, then DIR/benchmarks/gpu/gpu_check"
    return f"not built: {outcome.why()}"
