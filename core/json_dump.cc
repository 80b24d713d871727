// Writing JSON text: strict, and doubles with the fewest digits that read back to the same bits.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cmath>

#include "tutti/core/json.h"

namespace tutti {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// Length of the well-formed UTF-8 sequence at the front (Unicode table 3-7), or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) > 0x8F;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

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
      const std::size_t length = utf8_length(rest);
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
