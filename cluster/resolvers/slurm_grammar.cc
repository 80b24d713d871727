// Reading of Slurm's lists.
// SPDX-License-Identifier: Apache-2.0
//
// A list has entries with commas between them. An entry of a node list is literal text and bracket
// groups in turn; a group has ranges of numbers, "08-10", whose first number fixes the width.
#include "cluster/resolvers/slurm_grammar.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cluster/json_place.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxNodes = 65536;
constexpr std::size_t kMaxDigits = 9;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
         c == '.';
}

/// A text, and how far it was read.
class Reader {
 public:
  Reader(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  bool at_end() const { return place_ == text_.size(); }
  bool take(char c) {
    if (at_end() || text_[place_] != c) return false;
    ++place_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!take(c)) fail(what);
  }
  template <class Test>
  std::string_view take_while(Test test) {
    const std::size_t begin = place_;
    while (!at_end() && test(text_[place_])) ++place_;
    return text_.substr(begin, place_ - begin);
  }
  std::string_view digits() {
    const std::string_view found = take_while(is_digit);
    if (found.empty()) fail("a number");
    if (found.size() > kMaxDigits) fail("a number of at most 9 digits");
    return found;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string got = at_end() ? "its end" : concat("'", shown_character(), "'");
    tutti::fail(ErrorCode::kInvalidArgument, source_, ": cannot read ",
                internal::shown(Json(text_)), " at character ", place_ + 1, ": expected ", expected,
                ", got ", got);
  }
  [[noreturn]] void fail_size() const {
    tutti::fail(ErrorCode::kResourceExhausted, source_, ": more than ", kMaxNodes, " entries in ",
                internal::shown(Json(text_)));
  }

 private:
  std::string shown_character() const {
    const char c = text_[place_];
    return c >= ' ' && c <= '~' ? std::string(1, c) : "?";
  }

  std::string_view text_, source_;
  std::size_t place_ = 0;
};

int to_number(std::string_view digits) {
  int number = 0;
  for (const char c : digits) number = 10 * number + (c - '0');
  return number;
}

std::string padded(int number, std::size_t width) {
  const std::string digits = std::to_string(number);
  return std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits;
}

/// "[13,41-43]", without the bracket that opens it.
std::vector<std::string> read_group(Reader& reader) {
  std::vector<std::string> numbers;
  do {
    const std::string_view first = reader.digits();
    const std::string_view last = reader.take('-') ? reader.digits() : first;
    if (to_number(last) < to_number(first)) reader.fail("a range that ends after it began");
    const auto count = static_cast<std::size_t>(to_number(last) - to_number(first)) + 1;
    if (numbers.size() + count > kMaxNodes) reader.fail_size();
    for (int number = to_number(first); number <= to_number(last); ++number) {
      numbers.push_back(padded(number, first.size()));
    }
  } while (reader.take(','));
  reader.expect(']', "',', '-' or ']'");
  return numbers;
}

/// Every name so far with every suffix; the last bracket runs fastest.
std::vector<std::string> multiply(const std::vector<std::string>& names,
                                  const std::vector<std::string>& suffixes, const Reader& reader) {
  if (names.size() * suffixes.size() > kMaxNodes) reader.fail_size();
  std::vector<std::string> products;
  for (const std::string& name : names) {
    for (const std::string& suffix : suffixes) products.push_back(name + suffix);
  }
  return products;
}

std::vector<std::string> read_entry(Reader& reader) {
  std::vector<std::string> names{std::string(reader.take_while(is_name_character))};
  if (names.front().empty()) reader.fail("the name of a node");
  while (reader.take('[')) {
    names = multiply(names, read_group(reader), reader);
    names = multiply(names, {std::string(reader.take_while(is_name_character))}, reader);
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, std::string_view source) {
  Reader reader(list, source);
  std::vector<std::string> nodes;
  do {
    const std::vector<std::string> names = read_entry(reader);
    if (nodes.size() + names.size() > kMaxNodes) reader.fail_size();
    nodes.insert(nodes.end(), names.begin(), names.end());
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail("',' or '['");
  return nodes;
}

std::vector<int> expand_tasks_per_node(std::string_view list, std::string_view source) {
  Reader reader(list, source);
  std::vector<int> counts;
  do {
    const int tasks = to_number(reader.digits());
    int repeats = 1;
    if (reader.take('(')) {
      reader.expect('x', "'x'");
      repeats = to_number(reader.digits());
      if (repeats == 0) reader.fail("at least one node");
      reader.expect(')', "')'");
    }
    if (counts.size() + static_cast<std::size_t>(repeats) > kMaxNodes) reader.fail_size();
    counts.insert(counts.end(), static_cast<std::size_t>(repeats), tasks);
  } while (reader.take(','));
  if (!reader.at_end()) reader.fail("',' or '('");
  return counts;
}

}  // namespace tutti
