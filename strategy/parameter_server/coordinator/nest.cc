// Implements Nest, and the conversions that need no templates.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/nest.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "tutti/core/error.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti {
namespace {

void require_distinct(const Nest::Map& map) {
  std::set<std::string_view> names;
  for (const Nest::Member& member : map) {
    if (!names.insert(member.first).second) {
      fail(ErrorCode::kInvalidArgument, "nest: the name '", member.first,
           "' appears twice in a map; expected each name once");
    }
  }
}

void describe(const Nest& nest, std::string& text) {
  if (const Tensor* tensor = nest.tensor()) {
    text += concat(tensor->dtype(), " ", tensor->shape());
  } else if (nest.text() != nullptr) {
    text += "text";
  } else if (const PerWorkerHandle* handle = nest.handle()) {
    text += concat("per-worker ", handle->type);
  } else if (const Nest::List* list = nest.list()) {
    text += "(";
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i > 0) text += ", ";
      describe((*list)[i], text);
    }
    text += ")";
  } else if (const Nest::Map* map = nest.map()) {
    text += "{";
    for (std::size_t i = 0; i < map->size(); ++i) {
      text += concat(i > 0 ? ", " : "", (*map)[i].first, ": ");
      describe((*map)[i].second, text);
    }
    text += "}";
  } else {
    text += "nothing";
  }
}

bool is_scalar(const Nest& nest) { return nest.tensor() != nullptr && nest.tensor()->rank() == 0; }

}  // namespace

Nest::Nest(Tensor tensor) : value_(std::move(tensor)) {
  if (!std::get<Tensor>(value_).defined()) {
    fail(ErrorCode::kInvalidArgument, "nest: expected a tensor with a value, got an undefined one");
  }
}

Nest::Nest(Map map) {
  require_distinct(map);
  value_ = std::move(map);
}

std::string Nest::structure() const {
  std::string text;
  describe(*this, text);
  return text;
}

namespace internal {

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
         "; try a string");
  }
  return nest_of_integer(static_cast<std::int64_t>(value));
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace internal
}  // namespace tutti
