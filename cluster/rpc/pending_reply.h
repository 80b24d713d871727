// An answer on its way, or here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class PendingReply final : public RpcReply {
 public:
  /// `what`: "worker 0: ps 1 (127.0.0.1:4711)", for messages.
  explicit PendingReply(std::shared_ptr<const std::string> what);
  bool is_ready() const override;
  bool wait_until_ready(TimePoint deadline) override;
  void when_ready(std::function<void()> told) override;
  Packet wait(TimePoint deadline) override;
  /// The first of these counts.
  void set(Packet answer) { settle(std::move(answer), std::nullopt); }
  void set_error(Error error) { settle({}, std::move(error)); }

 private:
  void settle(Packet answer, std::optional<Error> error);

  const std::shared_ptr<const std::string> what_;
  const TimePoint begin_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_ready_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_taken_ TUTTI_GUARDED_BY(mutex_) = false;
  Packet answer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> error_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> told_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
