// Files of records that all have one size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/data/input_limits.h"

namespace tutti {

struct FixedLengthRecordOptions {
  /// Left out at the begin and at the end of each file.
  std::int64_t header_bytes = 0;
  std::int64_t footer_bytes = 0;
  /// Of .gz files.
  InputLimits limits = {};
};

/// Elements {features uint8 [record_bytes]}: the records of the files, one file after the other,
/// read as they are asked for (a .gz file is unpacked in memory when it is reached).
/// tf.data.FixedLengthRecordDataset. Throws kInvalidArgument for no path, a size below 1 or
/// negative options; while reading, kNotFound, and kDataLoss naming path, offset, expected and
/// found where a file does not hold whole records, kResourceExhausted beyond the limits.
Dataset fixed_length_record_dataset(std::vector<std::string> paths, std::int64_t record_bytes,
                                    FixedLengthRecordOptions options = {});

}  // namespace tutti
