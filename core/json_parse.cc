// Reading JSON text, with nlohmann's lexer and parser feeding our values.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "tutti/core/error.h"
#include "tutti/core/json.h"

namespace tutti {
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

/// Where valid JSON opens more than kMaxDepth arrays and objects.
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

/// The part of nlohmann's message behind "... line 1, column 5: ", which repeats the position. What
/// it last read may end within a letter, so only ASCII is kept; and may be long.
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

/// A member's name as part of one short line.
std::string readable(std::string_view name) {
  constexpr std::size_t kMaxLength = 60;
  std::string text = Json(name).dump();
  text = text.substr(1, text.size() - 2);
  if (text.size() <= kMaxLength) return text;
  std::size_t end = kMaxLength;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole letters
  return text.substr(0, end) + "...";
}

/// Receives the parser's events and builds a Json. `open_` holds the arrays and objects around the
/// current place.
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
  bool binary(binary_t&) override { return false; }  // occurs in binary formats only

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

  /// nlohmann's lexer takes one between values for the end of the text, whatever follows.
  void refuse_zero_bytes() const {
    const std::size_t zero = text_.find('\0');
    if (zero != std::string_view::npos) fail_at(zero, "a zero byte");
  }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json value;
    std::string name;  // of the member that comes next
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
         "' stands twice in an object; expected each once");
  }

  /// Of the innermost open value: "TF_CONFIG.cluster", "JSON[2].a".
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
