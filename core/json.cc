// JSON values: kinds and members.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/json.h"

#include <cmath>
#include <limits>

#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr const char* kKindNames[] = {"null",   "true or false", "a number", "a number",
                                      "a text", "an array",      "an object"};

}  // namespace

Json::Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail(ErrorCode::kOutOfRange, "Json: number too large; expected at most 2^63 - 1, got ", value,
         "; try to store it as text");
  }
}

void Json::fail_kind(const char* expected) const {
  fail(ErrorCode::kInvalidArgument, "Json: wrong kind of value; expected ", expected, ", got ",
       kKindNames[value_.index()]);
}

bool Json::is_number() const {
  return std::holds_alternative<std::int64_t>(value_) || std::holds_alternative<double>(value_);
}

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  fail_kind("true or false");
}

std::int64_t Json::as_int() const {
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return *value;
  if (const auto* value = std::get_if<double>(&value_)) {
    if (*value == std::trunc(*value) && *value >= -0x1p63 && *value < 0x1p63) {
      return static_cast<std::int64_t>(*value);
    }
    fail(ErrorCode::kInvalidArgument, "Json: expected a whole number of 64 bits, got ", dump());
  }
  fail_kind("a whole number");
}

double Json::as_double() const {
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*value);
  fail_kind("a number");
}

const std::string& Json::as_string() const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  fail_kind("a text");
}

const Json::Array& Json::as_array() const {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  fail_kind("an array");
}

const Json::Object& Json::as_object() const {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  fail_kind("an object");
}

const Json* Json::find(std::string_view name) const {
  for (const Member& member : as_object()) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view name) const {
  if (const Json* value = find(name)) return *value;
  fail(ErrorCode::kInvalidArgument, "Json: the object has no member '", name, "'");
}

Json& Json::set(std::string name, Json value) {
  auto* object = std::get_if<Object>(&value_);
  if (object == nullptr) fail_kind("an object");
  for (Member& member : *object) {
    if (member.first == name) {
      member.second = std::move(value);
      return *this;
    }
  }
  object->emplace_back(std::move(name), std::move(value));
  return *this;
}

void Json::append(std::string name, Json value) {
  if (auto* object = std::get_if<Object>(&value_)) {
    object->emplace_back(std::move(name), std::move(value));
  } else {
    push_back(std::move(value));
  }
}

void Json::push_back(Json value) {
  auto* array = std::get_if<Array>(&value_);
  if (array == nullptr) fail_kind("an array");
  array->push_back(std::move(value));
}

}  // namespace tutti
