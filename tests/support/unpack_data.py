#!/usr/bin/env python3
# Unpacks the .gz files of a folder, for builds that read no compressed files.
# SPDX-License-Identifier: Apache-2.0
"""Usage: unpack_data.py SOURCE_FOLDER TARGET_FOLDER   files that are there already are left alone"""
import gzip
import pathlib
import shutil
import sys


def main():
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for packed in sorted(source.glob("*.gz")):
        unpacked = target / packed.stem
        if unpacked.exists():
            continue
        with gzip.open(packed) as reader, open(unpacked.with_suffix(".part"), "wb") as writer:
            shutil.copyfileobj(reader, writer)
        unpacked.with_suffix(".part").rename(unpacked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
