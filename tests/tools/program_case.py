# Base class for tests that check a program's exit code, standard output and standard error.
# SPDX-License-Identifier: Apache-2.0
import unittest


class ProgramCase(unittest.TestCase):
    """Test case whose subclasses set `run_program` to a static function, which returns exit code, output and error output."""

    def output(self, *words, expected_code=0, **more):
        """Returns the standard output of a run that must end with this exit code."""
        code, output, errors = self.run_program(*words, **more)
        self.assertEqual(code, expected_code, output + errors)
        return output

    def errors(self, expected_code, *words, **more):
        """Returns the standard error of a run that must end with this exit code."""
        code, output, errors = self.run_program(*words, **more)
        self.assertEqual(code, expected_code, output + errors)
        return errors
