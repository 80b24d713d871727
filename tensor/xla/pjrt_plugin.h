// The PJRT plugin of this process: found, opened, and called.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tensor/xla/pjrt_api.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {

/// Where a plugin may be: what TUTTI_PJRT_PLUGIN names, alone when it is set; else what
/// TPU_LIBRARY_PATH names; then the known packages in the folders in which Python looks for
/// packages.
std::vector<std::string> pjrt_plugin_candidates();

namespace internal {

/// An opened plugin, which stays open as long as the process: plugins do not survive dlclose().
/// Any thread.
class PjrtPlugin {
 public:
  /// Throws kUnavailable naming the path and what is wrong with the library: no plugin, another
  /// major version, a table that is too short.
  explicit PjrtPlugin(const std::string& path);

  const std::string& path() const { return path_; }
  /// "0.115".
  std::string version() const;
  /// Of the library's bytes, read once: what its compiled programs are for. Throws as read_file().
  const std::string& file_hash() const;

  /// Throws what the plugin answers, `who` in front; kUnimplemented when it has no such function.
  template <class Fields>
  void call(PjrtFunction function, PjrtArguments<Fields>& arguments, const char* who) const {
    check(begin(function, arguments), who);
  }
  /// The same where nothing can be done about an error: in destructors.
  template <class Fields>
  void call_quietly(PjrtFunction function, PjrtArguments<Fields>& arguments) const noexcept {
    if (find(function) == nullptr) return;
    destroy(begin(function, arguments));
  }
  /// Waits for the event and gives it back. Throws as call().
  void await(PjrtEvent* event, const char* who) const;

 private:
  void* find(PjrtFunction function) const noexcept;
  template <class Fields>
  PjrtError* begin(PjrtFunction function, PjrtArguments<Fields>& arguments) const {
    void* const found = find(function);
    if (!found) fail_missing(function);
    return reinterpret_cast<PjrtError* (*)(PjrtArguments<Fields>*)>(found)(&arguments);
  }
  [[noreturn]] void fail_missing(PjrtFunction function) const;
  void check(PjrtError* error, const char* who) const;
  void destroy(PjrtError* error) const noexcept;

  const std::string path_;
  const PjrtApi* api_ = nullptr;
  mutable Mutex hash_mutex_;
  mutable std::string file_hash_ TUTTI_GUARDED_BY(hash_mutex_);
};

}  // namespace internal
}  // namespace tutti
