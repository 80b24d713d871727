# Runs a file's tests and reports skipped tests to ctest with the exit code; 0 means that all tests
# ran.
# SPDX-License-Identifier: Apache-2.0
import sys
import unittest

SKIPPED = 77  # SKIP_RETURN_CODE of tutti_python_test() in tests/CMakeLists.txt


def flat(suite):
    for each in suite:
        yield from flat(each) if isinstance(each, unittest.TestSuite) else [each]


def main(apart=()):
    """Same as unittest.main(), but classes named in `apart` run only if the command line names
    them. They cannot run everywhere, so each has a separate CTest test."""
    loader = unittest.defaultTestLoader
    module = sys.modules["__main__"]
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    tests = [test for test in flat(suite) if names or type(test).__name__ not in apart]
    result = unittest.TextTestRunner(verbosity=1).run(unittest.TestSuite(tests))
    for test, reason in result.skipped:
        print(f"SKIPPED {test}: {reason}", file=sys.stderr)
    if not result.wasSuccessful() or not result.testsRun:
        sys.exit(1)
    sys.exit(SKIPPED if result.skipped else 0)
