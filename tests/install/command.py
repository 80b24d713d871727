# Runs programs for the tests of installation.
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys


def run(*command, expect=0, cwd=None):
    """Returns the command's output. Ends this program if the command fails (with expect=1: if it succeeds)."""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, cwd=cwd)
    if (result.returncode == 0) != (expect == 0):
        sys.exit(f"exit code {result.returncode}: {' '.join(map(str, command))}\n{result.stdout[-20000:]}")
    return result.stdout
