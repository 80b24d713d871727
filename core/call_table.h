// Table of functions that create objects (layers, initialisers, ...) from calls written as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/names.h"
#include "tutti/core/error.h"
#include "tutti/core/json_values.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Table of functions by name. Each function creates a `Made` from a JSON call that names the
/// function. Thread-safe.
template <class Made>
class CallTable {
 public:
  using Entry = std::pair<std::string, CallReader<Made>>;

  /// `kind` is, for example, "layer". `remedy`, such as "call register_layer()", ends the error for
  /// an unknown name.
  CallTable(std::string kind, std::string remedy, std::vector<Entry> entries)
      : kind_(std::move(kind)), remedy_(std::move(remedy)), entries_(std::move(entries)) {}

  /// Throws kAlreadyExists if the name is taken.
  void add(std::string name, CallReader<Made> reader) {
    const MutexLock lock(mutex_);
    if (std::ranges::find(entries_, name, &Entry::first) != entries_.end())
      fail(ErrorCode::kAlreadyExists, kind_, " '", name, "' is already registered");
    entries_.emplace_back(std::move(name), std::move(reader));
  }

  std::vector<std::string> names() const {
    const MutexLock lock(mutex_);
    return names_of(entries_, &Entry::first);
  }

  /// Creates the object that `call` describes. Throws kNotFound, listing the names, if its name is
  /// unknown, or kInvalidArgument if its arguments are invalid.
  Made make(const Json& call) const {
    const Json::Array& parts = call.as_array();
    if (parts.empty())
      fail(ErrorCode::kInvalidArgument, "expected a call that creates a ", kind_, ", got []");
    const std::string& name = parts[0].as_string();
    const CallReader<Made> reader = find(name);
    if (!reader) {
      fail(ErrorCode::kNotFound, "there is no ", kind_, " '", name, "'; expected one of ",
           choices(names(), name), "; ", remedy_);
    }
    try {
      return reader(parts);
    } catch (const Error& error) {
      throw error.with_context(concat(kind_, " '", name, "'"));
    }
  }

 private:
  CallReader<Made> find(const std::string& name) const {
    const MutexLock lock(mutex_);
    const auto found = std::ranges::find(entries_, name, &Entry::first);
    return found == entries_.end() ? CallReader<Made>() : found->second;
  }

  const std::string kind_, remedy_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
