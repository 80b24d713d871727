// From connected sockets to a mesh of streams of both kinds.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/connect_ranks.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "tutti/cluster/environment.h"
#include "tutti/cluster/net/mesh.h"
#include "tutti/cluster/net/rendezvous.h"
#include "tutti/cluster/net/segment.h"
#include "tutti/cluster/net/socket.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

using internal::Connection;
using internal::Segment;
using Way = ConnectOptions::Way;

std::size_t ring_bytes_of(int size, const ConnectOptions& options) {
  constexpr std::size_t kLeast = 4096, kMost = std::size_t{1} << 30;
  const std::size_t bytes = options.ring_bytes;
  if (bytes == 0) return size <= 8 ? std::size_t{256} << 10 : std::size_t{64} << 10;
  if (bytes < kLeast || bytes > kMost || !std::has_single_bit(bytes)) {
    fail(ErrorCode::kInvalidArgument, "shm: ring_bytes; expected a power of two from ", kLeast,
         " to ", kMost, ", got ", bytes);
  }
  return bytes;
}

/// Turns the connections of one rank into streams.
class Linker {
 public:
  Linker(int rank, int size, ConnectOptions options)
      : rank_(rank),
        size_(size),
        options_(std::move(options)),
        deadline_(deadline_after(Clock::system().now(), options_.timeout)),
        segments_(static_cast<std::size_t>(size)) {
    if (!options_.secret.is_set()) options_.secret = JobSecret::from_environment();
    if (options_.job_id.empty()) {
      options_.job_id = Environment::of_process().find("TUTTI_JOB_ID").value_or("");
    }
    check_address();
    if (options_.way != Way::kTcp) make_segment();
  }

  ConnectedRanks connect(KeyValueStore& store) {
    internal::Connections connections =
        internal::connect_all(rank_, size_, store, options_, own_segment() != nullptr);
    share_segments(connections.by_rank);
    std::vector<std::unique_ptr<internal::ByteStream>> streams(segments_.size());
    for (std::size_t peer = 0; peer < streams.size(); ++peer) {
      if (peer != index()) streams[peer] = stream_to(peer, std::move(connections.by_rank[peer]));
    }
    return {internal::shared_mesh(rank_, std::move(streams),
                                  {.name = std::string(internal::name_of(options_.way)),
                                   .ranks_on_this_machine = connections.ranks_on_this_machine,
                                   .bytes_kept = options_.bytes_kept,
                                   .memory = memory()}),
            concat("rank ", rank_, " of ", size_, ": ", size_ == 1 ? "alone" : join(words_))};
  }

 private:
  std::size_t index() const { return static_cast<std::size_t>(rank_); }
  std::shared_ptr<Segment>& own_segment() { return segments_[index()]; }

  void check_address() const {
    if (options_.way == Way::kSharedMemory || size_ <= 1) return;
    const auto listens_at = internal::parse_listen_address(options_.listen_at);
    check_exposure("connect_ranks", listens_at ? listens_at->host : options_.address,
                   {.has_secret = options_.secret.is_set(),
                    .allow_insecure_network = options_.allow_insecure_network,
                    .allow_any_address = listens_at.has_value()});
  }

  /// What does not fit in a smaller place is copied; windows of the groups have to.
  std::size_t place_bytes(std::size_t offset) const {
    constexpr std::size_t kPage = internal::kPageBytes, kLeast = std::size_t{64} << 20;
    const std::size_t wanted = internal::rounded_up(options_.place_bytes, kPage);
    const std::uint64_t limit = file_size_limit();
    if (limit <= offset || limit - offset < std::min(wanted, kLeast)) return wanted;  // is refused
    return std::min<std::size_t>(wanted, (limit - offset) / kPage * kPage);
  }

  void make_segment() {
    internal::SegmentLayout layout{
        .ring_bytes = ring_bytes_of(size_, options_), .rank = rank_, .size = size_};
    layout.num_bytes = layout.place_offset() + place_bytes(layout.place_offset());
    try {
      own_segment() = std::make_shared<Segment>(layout);
    } catch (const Error& error) {
      if (options_.way == Way::kSharedMemory || size_ == 1) throw;
      log(LogLevel::kWarning, concat("rank ", rank_, " uses TCP alone: ", error.message()));
    }
  }

  static std::string name_of_peer(std::size_t peer, const Connection& connection) {
    return concat("rank ", peer, " (", connection.address, ")");
  }

  /// First all are sent, so that nobody waits for one who waits.
  void share_segments(const std::vector<Connection>& connections) {
    for (std::size_t peer = 0; peer < connections.size(); ++peer) {
      if (!connections[peer].is_local) continue;
      internal::send_segment(connections[peer].socket, *own_segment(),
                             name_of_peer(peer, connections[peer]));
    }
    for (std::size_t peer = 0; peer < connections.size(); ++peer) {
      if (!connections[peer].is_local) continue;
      segments_[peer] = internal::receive_segment(connections[peer].socket, static_cast<int>(peer),
                                                  size_, name_of_peer(peer, connections[peer]),
                                                  deadline_, options_.interruption.get());
    }
  }

  std::unique_ptr<internal::ByteStream> stream_to(std::size_t peer, Connection connection) {
    const std::string name = concat(connection.is_local ? "shm: " : "tcp: ",  // in errors
                                    name_of_peer(peer, connection));
    if (!connection.is_local) {
      words_.push_back(concat("rank ", peer, ": tcp ", connection.address));
      return internal::tcp_stream(std::move(connection.socket), name);
    }
    words_.push_back(concat("rank ", peer, ": shared memory (", connection.address, ")"));
    return internal::ring_stream(own_segment(), segments_[peer], std::move(connection.socket),
                                 name);
  }

  std::shared_ptr<HostMemory> memory() const {
    for (const auto& segment : segments_) {
      if (!segment) return nullptr;
    }
    return internal::shm_memory(rank_, segments_);
  }

  const int rank_;
  const int size_;
  ConnectOptions options_;
  const TimePoint deadline_;
  std::vector<std::shared_ptr<Segment>> segments_;  // by rank
  std::vector<std::string> words_;
};

}  // namespace

ConnectOptions::Way parse_way(std::string_view text) {
  if (text == "auto") return Way::kAuto;
  if (text == "shm") return Way::kSharedMemory;
  if (text == "tcp") return Way::kTcp;
  fail(ErrorCode::kInvalidArgument, "expected auto, shm or tcp as the way between ranks, got '",
       text, "'");
}

ConnectedRanks connect_ranks(int rank, int size, KeyValueStore& store,
                             const ConnectOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    fail(ErrorCode::kInvalidArgument, internal::name_of(options.way), ": rank ", rank, " of ", size,
         "; expected a rank from 0 to size - 1");
  }
  return Linker(rank, size, options).connect(store);
}

}  // namespace tutti
