// The launcher's own files: the standard ones open, and room for a pipe per output of each process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tutti::launch {

/// Opens /dev/null where standard input, output or error were closed: what is opened next would
/// take their numbers, and get the lines that are meant for them. First thing in a program.
void open_standard_streams();

/// Raises this process's limit of open files, if need be, to what `num_processes` take; the
/// processes themselves start with the limit from before. Throws kInvalidArgument naming both
/// numbers where the user may not have so many.
void allow_open_files_for(int num_processes);

/// For the process between fork and exec: sets the limit back.
void restore_open_files_limit();

}  // namespace tutti::launch
