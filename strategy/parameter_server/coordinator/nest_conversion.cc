// The conversions that need no templates, and their errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

#include <cxxabi.h>

#include <cstdlib>

namespace tutti::internal {
namespace {

bool is_scalar(const Nest& nest) { return nest.tensor() != nullptr && nest.tensor()->rank() == 0; }

}  // namespace

void fail_conversion(const std::string& who, std::string_view expected, const Nest& got) {
  fail(ErrorCode::kInvalidArgument, who, ": expected ", expected, ", got ", got.structure());
}

std::int64_t integer_of(const Nest& nest, const std::string& who, std::string_view expected,
                        std::int64_t low, std::int64_t high) {
  if (!is_scalar(nest) || is_floating(nest.tensor()->dtype())) fail_conversion(who, expected, nest);
  const std::int64_t value = nest.tensor()->item_int();
  if (value < low || value > high) {
    fail(ErrorCode::kInvalidArgument, who, ": expected ", expected, ", from ", low, " to ", high,
         ", got ", value);
  }
  return value;
}

double number_of(const Nest& nest, const std::string& who, std::string_view expected) {
  if (!is_scalar(nest)) fail_conversion(who, expected, nest);
  return nest.tensor()->item_double();
}

Nest nest_of_integer(std::int64_t value) { return Nest(Tensor::from<std::int64_t>({}, {value})); }

Nest nest_of_unsigned(std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail(ErrorCode::kInvalidArgument, "nest: expected a number below 2^63, got ", value,
         "; try a text");
  }
  return nest_of_integer(static_cast<std::int64_t>(value));
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace tutti::internal
