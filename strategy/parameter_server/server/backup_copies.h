// The states of other servers that this one keeps for the day they die.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tutti/cluster/rpc/rpc_server.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/server/variable_store.h"

namespace tutti::internal {

/// Batches are applied in the order of the calls of one client, by the code that the server itself
/// applies them with. Threads: any; calls of one client one at a time.
class BackupCopies {
 public:
  /// Answers it. Throws kAborted for a batch of a copy that is not there, or began otherwise;
  /// kNotFound when nothing is kept for who asks; kDataLoss for damaged ones.
  void take(RpcCall& call);

 private:
  struct Copy {
    Copy(const std::string& name, std::uint64_t began) : term(began), store(name, began) {}
    const std::uint64_t term;
    VariableStore store;
  };
  std::shared_ptr<Copy> find(int server) const;

  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<Copy>> copies_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
