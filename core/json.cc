// JSON values: kinds and members, parsing and writing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/json_values.h"

namespace tutti {
namespace {

constexpr const char* kKindNames[] = {"null",     "true or false", "a number", "a number",
                                      "a string", "an array",      "an object"};

}  // namespace

Json::Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail(ErrorCode::kOutOfRange, "Json: number too large; expected at most 2^63 - 1, got ", value,
         "; store it as a string");
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
    fail(ErrorCode::kInvalidArgument, "Json: expected a 64-bit integer, got ", dump());
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
  fail_kind("a string");
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

// Serialisation with nlohmann-json.

namespace {

using Written = nlohmann::ordered_json;

Written written(const Json& json) {
  return json.visit([]<class Value>(const Value& value) -> Written {
    if constexpr (std::is_same_v<Value, Json::Array>) {
      Written::array_t elements;
      for (const Json& element : value) elements.push_back(written(element));
      return elements;
    } else if constexpr (std::is_same_v<Value, Json::Object>) {
      Written::object_t members;
      // Bypasses insertion by name, which would search all members, because the names are already
      // unique.
      auto& list = static_cast<Written::object_t::Container&>(members);
      for (const auto& [name, member] : value) list.emplace_back(name, written(member));
      return members;
    } else {
      return value;
    }
  });
}

}  // namespace

std::string Json::dump(int indent) const {
  return written(*this).dump(indent, ' ', false, Written::error_handler_t::replace);
}

// Parsing: nlohmann's lexer and parser feed a Builder.

namespace {

constexpr std::size_t kMaxDepth = 256;

struct Position {
  std::size_t line = 1;
  std::size_t column = 1;
};

Position position_of(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0: the first line
  return {1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')),
          1 + offset - line_start};
}

/// Returns the offset at which valid JSON first has more than kMaxDepth open arrays and objects.
std::size_t offset_of_excess_depth(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return text.size();
}

/// Returns nlohmann's message without its prefix "... line 1, column 5: ", which would repeat the
/// position. The quoted text may end in the middle of a character, so only ASCII is kept; long text
/// is truncated.
std::string reason_of(std::string_view message) {
  constexpr std::size_t kMaxLength = 300;
  const std::size_t column = message.find("column ");
  const std::size_t colon = message.find(": ", column == std::string_view::npos ? 0 : column);
  std::string reason(colon == std::string_view::npos ? message : message.substr(colon + 2));
  for (char& c : reason) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (reason.size() > kMaxLength) reason = reason.substr(0, kMaxLength) + "...";
  return reason;
}

/// Returns a member's name in a form that fits on one short line.
std::string readable(std::string_view name) {
  constexpr std::size_t kMaxLength = 60;
  std::string text = Json(name).dump();
  text = text.substr(1, text.size() - 2);
  if (text.size() <= kMaxLength) return text;
  std::size_t end = kMaxLength;
  // Cuts the text between two UTF-8 characters.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

/// Receives the parser's events and builds a Json. `open_` holds the arrays and objects that
/// enclose the current position.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return add(fits ? Json(static_cast<std::int64_t>(value)) : Json(static_cast<double>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // occurs only in binary formats

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override {
    check_unique(open_.back().value.as_object());
    return close();
  }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back().name = std::move(name);
    return true;
  }

  bool parse_error(std::size_t offset, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail_at(offset > 0 ? offset - 1 : 0, reason_of(error.what()));
  }

  /// Throws if the text contains a zero byte. nlohmann's lexer would treat a zero byte between
  /// values as the end of the text and ignore everything after it.
  void refuse_zero_bytes() const {
    const std::size_t zero = text_.find('\0');
    if (zero != std::string_view::npos) fail_at(zero, "a zero byte");
  }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json value;
    std::string name;  // name of the next member
  };

  [[noreturn]] void fail_at(std::size_t offset, std::string_view reason) const {
    const Position position = position_of(text_, std::min(offset, text_.size()));
    fail(ErrorCode::kInvalidArgument, source_, ": not valid JSON at line ", position.line,
         ", column ", position.column, ": ", reason);
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      Open& parent = open_.back();
      parent.value.append(std::move(parent.name), std::move(value));
    }
    return true;
  }

  bool open(Json value) {
    if (open_.size() == kMaxDepth) {
      fail_at(offset_of_excess_depth(text_),
              concat("nested more than ", kMaxDepth, " levels deep"));
    }
    open_.push_back({std::move(value), {}});
    return true;
  }

  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  void check_unique(const Json::Object& object) const {
    std::vector<std::string_view> names;
    for (const Json::Member& member : object) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return;
    fail(ErrorCode::kInvalidArgument, path(), ": member '", readable(*twice),
         "' appears twice in an object; expected each name once");
  }

  /// Returns the path of the innermost open value: "TF_CONFIG.cluster", "JSON[2].a".
  std::string path() const {
    std::string path(source_);
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) {
      const Json& parent = open_[i].value;
      path += parent.is_array() ? concat("[", parent.as_array().size(), "]")
                                : concat(".", readable(open_[i].name));
    }
    return path;
  }

  std::string_view text_;
  std::string_view source_;
  std::vector<Open> open_;
  Json root_;
};

}  // namespace

Json Json::parse(std::string_view text, std::string_view source) {
  Builder builder(text, source);
  builder.refuse_zero_bytes();
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace tutti

namespace tutti::internal {

// Conversion of C++ numbers to and from JSON, and checks of parsed values.

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
  return json.as_double();  // throws, naming the kind that was found
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
