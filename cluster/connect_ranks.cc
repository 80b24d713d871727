// Builds a mesh of TCP and shared-memory connections from connected sockets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/connect_ranks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cluster/net/connect_all.h"
#include "cluster/net/mesh.h"
#include "cluster/net/socket.h"
#include "core/file.h"
#include "cross_device_ops/shared/host_memory.h"
#include "tutti/cluster/cluster_resolver.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

using internal::ConnectedPeer;
using internal::FileDescriptor;
using internal::Segment;
using Way = ConnectOptions::Way;

/// Builder of the connections from one rank to all others.
class Linker {
 public:
  Linker(int rank, int size, ConnectOptions options)
      : rank_(rank),
        size_(size),
        options_(std::move(options)),
        segments_(static_cast<std::size_t>(size)) {
    if (!options_.secret.is_set()) options_.secret = JobSecret::from_environment();
    if (options_.job_id.empty()) {
      options_.job_id = Environment::of_process().find("TUTTI_JOB_ID").value_or("");
    }
    check_address();
    if (options_.way != Way::kTcp) make_segment();
  }

  ConnectedRanks connect(KeyValueStore& store) {
    const FileDescriptor no_memory;
    std::vector<ConnectedPeer> peers =
        internal::connect_all(rank_, size_, store, options_, own_ ? own_->file() : no_memory);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) use(peer, peers[static_cast<std::size_t>(peer)]);
    }
    return {internal::shared_mesh(rank_, std::move(peers),
                                  {.name = std::string(internal::name_of(options_.way)),
                                   .bytes_kept = options_.bytes_kept,
                                   .memory = memory()}),
            concat("rank ", rank_, " of ", size_, ": ", size_ == 1 ? "alone" : join(words_))};
  }

 private:
  void check_address() const {
    if (options_.way == Way::kSharedMemory || size_ <= 1) return;
    const auto listens_at = internal::parse_listen_address(options_.listen_at);
    check_exposure("connect_ranks", listens_at ? listens_at->host : options_.address,
                   {.has_secret = options_.secret.is_set(),
                    .allow_insecure_network = options_.allow_insecure_network,
                    .allow_any_address = listens_at.has_value()});
  }

  /// Returns the size of this rank's segment. Buffers that do not fit are allocated elsewhere and
  /// copied, but each group's shared window must fit.
  std::size_t segment_bytes() const {
    constexpr std::size_t kPage = internal::kPageBytes, kBegin = internal::kPlaceBegin;
    constexpr std::size_t kLeast = std::size_t{64} << 20;
    const std::size_t wanted = internal::rounded_up(options_.place_bytes, kPage);
    const std::uint64_t limit = file_size_limit();
    const bool is_refused = limit <= kBegin || limit - kBegin < std::min(wanted, kLeast);
    if (is_refused) return kBegin + wanted;
    return kBegin + std::min<std::size_t>(wanted, (limit - kBegin) / kPage * kPage);
  }

  void make_segment() {
    try {
      own_ = std::make_shared<Segment>(segment_bytes());
    } catch (const Error& error) {
      if (options_.way == Way::kSharedMemory || size_ == 1) throw;
      log(LogLevel::kWarning, concat("rank ", rank_, " uses only TCP: ", error.message()));
    }
    segments_[static_cast<std::size_t>(rank_)] = own_;
  }

  /// Maps the peer's segment if the peer is local, and records how to reach the peer.
  void use(int peer, ConnectedPeer& connected) {
    const std::string& address = connected.address;
    if (!connected.is_local) {
      words_.push_back(concat("rank ", peer, ": tcp ", address));
      return;
    }
    segments_[static_cast<std::size_t>(peer)] = std::make_shared<Segment>(
        std::move(connected.memory), concat("shm: rank ", peer, " (", address, ")"));
    words_.push_back(concat("rank ", peer, ": shared memory (", address, ")"));
  }

  std::shared_ptr<HostMemory> memory() const {
    for (const auto& segment : segments_) {
      if (!segment) return nullptr;
    }
    return std::make_shared<HostMemory>(rank_, segments_);
  }

  const int rank_;
  const int size_;
  ConnectOptions options_;
  std::shared_ptr<Segment> own_;  // null with kTcp, or if there was not enough memory
  std::vector<std::shared_ptr<Segment>> segments_;  // indexed by rank
  std::vector<std::string> words_;
};

}  // namespace

ConnectOptions::Way parse_way(std::string_view text) {
  if (text == "auto") return Way::kAuto;
  if (text == "shm") return Way::kSharedMemory;
  if (text == "tcp") return Way::kTcp;
  fail(ErrorCode::kInvalidArgument, "transport: expected auto, shm or tcp, got '", text, "'");
}

ConnectedRanks connect_ranks(int rank, int size, KeyValueStore& store,
                             const ConnectOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    fail(ErrorCode::kInvalidArgument, internal::name_of(options.way),
         ": expected a rank from 0 to size - 1, got rank ", rank, " of ", size);
  }
  return Linker(rank, size, options).connect(store);
}

}  // namespace tutti
