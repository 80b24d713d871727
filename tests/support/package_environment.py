# Virtual environments with packages from PyPI, for tests that compare results with these packages.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import shutil
import subprocess
import sys
import venv

ENVIRONMENTS = pathlib.Path(__file__).resolve().parent.parent.parent / ".venv"


class PackageEnvironment:
    """Virtual environment `.venv/NAME` with the given packages from pip; removed if the installation fails."""

    def __init__(self, name, requirements):
        self.folder = ENVIRONMENTS / name
        self.python = self.folder / "bin" / "python"
        self.requirements = requirements

    def install(self):
        if self.python.exists():
            return
        try:
            venv.create(self.folder, with_pip=True)
            subprocess.run([self.python, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20",
                            *self.requirements], check=True)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def main(self, usage):
        """Executes --install or --install-if-possible, or runs the script in the environment. Returns
        only if this process already runs in the environment."""
        if sys.argv[1:] == ["--install"]:
            self.install()
        elif sys.argv[1:] == ["--install-if-possible"]:
            try:
                self.install()
            except subprocess.CalledProcessError as error:
                print(f"{self.folder.name}: the packages were not installed: {error}")
        elif len(sys.argv) < 2:
            sys.exit(usage)
        elif pathlib.Path(sys.prefix).resolve() != self.folder.resolve():
            sys.exit(subprocess.run([self.python, *sys.argv], check=False).returncode)
        else:
            return
        sys.exit(0)
