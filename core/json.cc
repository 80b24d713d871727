// JSON values: kinds, members and text.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/json.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "tutti/core/error.h"
#include "tutti/core/one_line.h"

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

// Text: strict, and doubles with the fewest digits that read back to the same bits.

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

class Writer {
 public:
  Writer(std::string& out, int indent) : out_(out), indent_(indent) {}

  void write(std::nullptr_t) { out_ += "null"; }
  void write(bool value) { out_ += value ? "true" : "false"; }
  void write(std::int64_t value) { write_number(value); }
  void write(double value) {
    if (!std::isfinite(value)) return write(nullptr);
    const std::size_t begin = out_.size();
    write_number(value);
    // "3" would read back as an integer.
    if (out_.find_first_of(".e", begin) == std::string::npos) out_ += ".0";
  }

  void write(const std::string& text) {
    out_ += '"';
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t length = internal::utf8_length(rest);
      if (length == 1) {
        write_character(rest[0]);
      } else {
        out_ += length == 0 ? kReplacement : rest.substr(0, length);
      }
      rest.remove_prefix(length == 0 ? 1 : length);
    }
    out_ += '"';
  }

  void write(const Json::Array& array) {
    write_list('[', ']', array, [this](const Json& element) { write_json(element); });
  }

  void write(const Json::Object& object) {
    write_list('{', '}', object, [this](const Json::Member& member) {
      write(member.first);
      out_ += indent_ < 0 ? ":" : ": ";
      write_json(member.second);
    });
  }

  void write_json(const Json& json) {
    json.visit([this](const auto& value) { write(value); });
  }

 private:
  template <class Number>
  void write_number(Number value) {
    char text[32];
    out_.append(text, std::to_chars(text, text + sizeof(text), value).ptr);
  }

  void write_character(char c) {
    constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    constexpr std::string_view kHex = "0123456789abcdef";
    if (const std::size_t at = kEscaped.find(c); at != std::string_view::npos) {
      out_ += '\\';
      out_ += kLetters[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out_ += "\\u00";
      out_ += kHex[static_cast<unsigned char>(c) >> 4];
      out_ += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      out_ += c;
    }
  }

  template <class List, class WriteElement>
  void write_list(char begin, char end, const List& list, WriteElement write_element) {
    out_ += begin;
    ++depth_;
    bool first = true;
    for (const auto& element : list) {
      if (!first) out_ += ',';
      first = false;
      new_line();
      write_element(element);
    }
    --depth_;
    if (!first) new_line();
    out_ += end;
  }

  void new_line() {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(indent_ * depth_), ' ');
  }

  std::string& out_;
  int indent_;
  int depth_ = 0;
};

}  // namespace

std::string Json::dump(int indent) const {
  std::string out;
  Writer(out, indent).write_json(*this);
  return out;
}

}  // namespace tutti
