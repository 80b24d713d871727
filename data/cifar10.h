// The binary version of CIFAR-10: records of a label and a picture.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/data/readers.h"

namespace tutti {

/// Parses the bytes of a plain file of records: 1 label byte (0 .. 9) and 3072 image bytes (planes
/// of 32 x 32: red, green, blue). Gives images [n, 32, 32, 3] and labels [n], uint8. `source` names
/// the bytes in errors: kDataLoss with offset, expected and got for an empty or incomplete file or
/// a label above 9.
ImageData parse_cifar10(std::string_view bytes, const std::string& source);

}  // namespace tutti
