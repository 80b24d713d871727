# One way to run a program in the tests of installing.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys


def run(*command, expect=0, cwd=None):
    """Its output; ends this program where the command fails (expect=1: where it does not)."""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, cwd=cwd)
    if (result.returncode == 0) != (expect == 0):
        sys.exit(f"exit code {result.returncode}: {' '.join(map(str, command))}\n{result.stdout[-20000:]}")
    return result.stdout
