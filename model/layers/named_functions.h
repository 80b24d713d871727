// Tables of functions that create regularizers and similar objects from a name or a constructor
// call.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/call_table.h"

namespace tutti::internal {

/// Table entry: a function whose result has type `Made`, and its name.
template <class Made>
struct NamedFunction {
  const char* name;
  Made (*make)();
  CallReader<Made> (*reader)();
};

template <auto kFunction>
auto reader_of() {
  return reads_call(kFunction);
}

/// Creates a table. `kind` names the result of its functions, such as "regularizer".
template <class Made>
CallTable<Made> call_table(std::span<const NamedFunction<Made>> functions, const char* kind) {
  std::vector<std::pair<std::string, CallReader<Made>>> entries;
  for (const auto& function : functions) entries.emplace_back(function.name, function.reader());
  return {kind, "try a later version of tutti", std::move(entries)};
}

}  // namespace tutti::internal
