// Names of types, and their conversion to snake_case.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/fields.h"

#include <cxxabi.h>

#include <cctype>
#include <memory>

namespace tutti::internal {
namespace {

bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }
bool is_lower(char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

std::string plain_type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? demangled.get() : type.name();
  name = name.substr(0, name.find('<'));
  const std::size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

std::string snake_case(std::string_view type_name) {
  std::string result;
  for (std::size_t i = 0; i < type_name.size(); ++i) {
    const char c = type_name[i];
    // A word starts at an upper-case letter that follows a lower-case letter or precedes one
    // ("RNNCell"), but never directly after a digit ("2D").
    const bool after_lower = i > 0 && is_lower(type_name[i - 1]);
    const bool before_lower = i > 0 && i + 1 < type_name.size() && is_lower(type_name[i + 1]) &&
                              !is_digit(type_name[i - 1]);
    if (is_upper(c) && (after_lower || before_lower)) result += '_';
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

}  // namespace tutti::internal
