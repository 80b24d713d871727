#!/usr/bin/env python3
# Makes Debian packages of tutti, installs them in a fresh minimal Debian 12, and trains there with
# a program that is built with them.
# SPDX-License-Identifier: Apache-2.0
"""Usage: deb_test.py BUILD_FOLDER   (needs root, Debian's mmdebstrap, and a network for Debian's packages)

mmdebstrap creates the system in a temporary folder and removes it afterwards.
"""
import pathlib
import sys
import tempfile

from command import run

HERE = pathlib.Path(__file__).resolve().parent


def pack(build, folder):
    """Makes and checks the packages. Returns {name: path}."""
    run("cpack", "--config", build / "CPackConfig.cmake", "-G", "DEB", "-B", folder)
    packages = {path.name.split("_")[0]: path for path in folder.glob("*.deb")}
    assert {"tutti", "libtutti-dev", "tutti-doc"} <= set(packages), packages
    for name, path in packages.items():
        files = run("dpkg-deb", "--contents", path)
        for note in ("copyright", "changelog.gz"):
            assert f"./usr/share/doc/{name}/{note}" in files, (name, files)
        assert "./usr/local" not in files, (name, files)
    if (build / "reference" / "site" / "index.html").exists():
        assert "doc/tutti/reference/index.html" in run("dpkg-deb", "--contents", packages["tutti-doc"])
    return packages


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        packages = pack(build, work / "packages")
        inside = work / "tutti"
        inside.mkdir()
        for name in ("tutti", "libtutti-dev", "tutti-doc"):
            packages[name].rename(inside / packages[name].name)
        for path in (HERE / "deb").iterdir():
            (inside / path.name).write_bytes(path.read_bytes())
        output = run("mmdebstrap", "--variant=minbase", "bookworm", "/dev/null", f"--customize-hook=copy-in {inside} /root",
                     '--customize-hook=chroot "$1" sh -eux /root/tutti/install_and_train.sh')
    for built_with in ("cmake", "pkg-config"):
        assert f"{built_with}: trained" in output, output[-20000:]
    print(output[-3000:])
    print("deb: installed", ", ".join(sorted(packages)), "except tutti-cuda, and trained in a fresh Debian 12")


if __name__ == "__main__":
    main()
