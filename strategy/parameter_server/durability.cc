// Names of durabilities.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/durability.h"

#include "tutti/core/error.h"

namespace tutti {

std::string to_string(Durability durability) {
  return durability == Durability::kNone ? "none" : "logged";
}

std::ostream& operator<<(std::ostream& out, Durability durability) {
  return out << to_string(durability);
}

Durability parse_durability(const std::string& text) {
  for (const Durability each : {Durability::kNone, Durability::kLogged}) {
    if (text == to_string(each)) return each;
  }
  fail(ErrorCode::kInvalidArgument, "ParameterServerStrategy: durability '", text,
       "'; expected one of ", Durability::kNone, ", ", Durability::kLogged);
}

}  // namespace tutti
