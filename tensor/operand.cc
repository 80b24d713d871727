// The caller's line, for error messages.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/operand.h"

#include <string_view>

namespace tutti {

std::string to_string(const SourceLocation& where) {
  std::string_view file = where.file_name();
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  return concat(file, ":", where.line());
}

}  // namespace tutti
