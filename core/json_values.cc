// C++ values as JSON: the checks of what is read.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/json_values.h"

#include <cmath>
#include <limits>

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti::internal {

Json json_of_double(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double double_of_json(const Json& json) {
  if (json.is_number()) return json.as_double();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string text = json.dump();
  if (text == "\"inf\"") return kInfinity;
  if (text == "\"-inf\"") return -kInfinity;
  if (text == "\"nan\"") return std::numeric_limits<double>::quiet_NaN();
  return json.as_double();  // says what it is
}

std::int64_t whole_number(const Json& json, std::int64_t least, std::int64_t most) {
  const std::int64_t number = json.as_int();
  if (number >= least && number <= most) return number;
  fail(ErrorCode::kInvalidArgument, "expected a whole number from ", least, " to ", most, ", got ",
       number);
}

const Json::Array& array_of_size(const Json& json, std::size_t size) {
  const Json::Array& array = json.as_array();
  if (array.size() == size) return array;
  fail(ErrorCode::kInvalidArgument, "expected ", size, " values, got ", array.size());
}

Json write_members(std::span<const JsonMember> members) {
  Json json = Json::object();
  for (const JsonMember& member : members) {
    json.set(std::string(member.name), member.write(member.value));
  }
  return json;
}

void read_members(std::span<const JsonMember> members, const Json& json) {
  for (const JsonMember& member : members) {
    const Json* const found = json.find(member.name);
    if (!found) continue;
    try {
      member.read(member.value, *found);
    } catch (const Error& error) {
      throw error.with_context(concat("'", member.name, "'"));
    }
  }
  for (const auto& [name, value] : json.as_object()) {
    if (std::ranges::find(members, name, &JsonMember::name) != members.end()) continue;
    fail(ErrorCode::kInvalidArgument, "there is no option '", name, "'; expected one of ",
         choices(names_of(members, &JsonMember::name), name));
  }
}

void require_arguments(const Json::Array& call, std::size_t count) {
  if (call.size() == count + 1) return;
  fail(ErrorCode::kInvalidArgument, "expected ", count, " arguments, got ",
       call.empty() ? 0 : call.size() - 1);
}

void throw_in_argument(std::size_t index) {
  try {
    throw;
  } catch (const Error& error) {
    throw error.with_context(concat("argument ", index));
  }
}

}  // namespace tutti::internal
