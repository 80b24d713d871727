// Example of a cross-device operation between processes, written in C++.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::testing {

/// Operation that sums in canonical order across ranks, each of which sends its values to all other
/// ranks. Records the buckets passed to it.
class ExchangeSums final : public CrossDeviceOps {
 public:
  struct Seen {
    Mutex mutex;
    std::set<std::uint64_t> ids;  // ids from all ranks
    std::uint64_t num_bytes = 0;  // bytes from all ranks
    std::set<std::string> names;
  };

  ExchangeSums(const Group& group, Seen& seen) : ranks_(group.transport), seen_(seen) {}
  std::string_view name() const override { return "exchange_sums"; }
  bool supports(ReduceOp op, DType, DeviceType) const override { return op == ReduceOp::kSum; }
  Determinism determinism() const override { return Determinism::kCanonical; }
  bool spans_processes() const override { return true; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> local) override {
    const ReplicaBuffer& own = local.front();
    EXPECT_EQ(own.name.rfind("gradients ", 0), 0u) << own.name;
    EXPECT_NE(own.id, 0u);
    {
      MutexLock lock(seen_.mutex);
      seen_.ids.insert(own.id);
      seen_.num_bytes += own.num_bytes();
      seen_.names.emplace(own.name);
    }
    const std::vector<std::byte> mine(own.data, own.data + own.num_bytes());
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(ranks_->size()), mine);
    std::vector<std::unique_ptr<Work>> works;
    std::vector<const std::byte*> inputs;
    for (int r = 0; r < ranks_->size(); ++r) {
      std::vector<std::byte>& values = all[static_cast<std::size_t>(r)];
      inputs.push_back(values.data());
      if (r == ranks_->rank()) continue;
      works.push_back(ranks_->send(r, 0, {}, mine));
      works.push_back(ranks_->recv(r, 0, {}, values));
    }
    for (const auto& work : works) work->wait(TimePoint::max());
    reduce_along_tree(op, own.dtype, inputs, own.data, own.count);
  }

 private:
  const std::shared_ptr<Transport> ranks_;
  Seen& seen_;
};

}  // namespace tutti::testing
