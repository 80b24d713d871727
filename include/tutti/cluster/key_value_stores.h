// Values by key that all ranks see, as files of a folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {

/// One file per key, replaced by renaming: a reader sees the old value or the new one. The folder
/// (made if missing) may be on a disk that several machines share. What an earlier run left there
/// is still there: give each run its own folder, or users that can tell (connect_ranks() can).
/// wait() looks again after 1 to 50 ms. Throws kUnavailable naming path and reason when the system
/// refuses. Threads: any; processes: any.
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
