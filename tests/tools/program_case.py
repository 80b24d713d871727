# Base of tests of a program by its exit code, standard output and standard error.
# SPDX-License-Identifier: Apache-2.0
import unittest


class ProgramCase(unittest.TestCase):
    """Subclasses set `run_program` to a static function that returns exit code, standard output and standard error."""

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
