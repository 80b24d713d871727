// Key-value store in a folder that all ranks can access.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {

/// Key-value store with one file per key, replaced by renaming, so that a reader sees the old value
/// or the new one. The folder (created if missing) may be on a disk shared by several machines.
/// Values persist: give each run its own folder, unless the callers detect old values, as
/// connect_ranks() does. wait() polls every 1 to 50 ms. Throws kUnavailable, with the path and the
/// reason, if the system refuses access. Thread-safe and process-safe.
class FileKeyValueStore final : public KeyValueStore {
 public:
  explicit FileKeyValueStore(std::string folder);
  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override;

 private:
  std::string path_of(std::string_view key) const;
  std::string name() const;

  std::string folder_;
};

}  // namespace tutti
