// A key-value store of the threads of one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {

/// Values in memory. Threads: any; share it with a shared_ptr.
class InProcessStore final : public KeyValueStore {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string, std::less<>> values_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
