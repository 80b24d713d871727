// All frames that this process sends and receives by MPI, and whom they are for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cross_device_ops/mpi/mpi_runtime.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::internal {

using durations::kLastWords;

/// What travels between two ranks in one MPI message: a header and bytes, in memory of its own. The
/// processes of an MPI job are of one build.
class MpiFrame {
 public:
  enum class Kind : std::uint16_t {
    kHello,    // the rank is there
    kMessage,  // a short message: head and body
    kOffer,    // the head of a long one; its body waits for kAccept
    kAccept,   // of an offer: send the body
    kRefuse,   // of an offer: nobody wants the body (any more)
    kChunk,    // the next part of an accepted body
    kCancel,   // an offer is taken back
    kAbort,    // the group is ended; the text says why
    kGoodbye,  // the rank is gone
  };
  struct Header {
    Kind kind = Kind::kHello;
    std::uint16_t head_bytes = 0;
    std::int32_t from = 0;  // ranks of the channel
    std::int32_t to = 0;
    std::uint64_t channel = 0;
    std::uint64_t tag = 0;
    std::uint64_t body_bytes = 0;  // of the whole body, of which a frame may hold a part or none
    std::uint64_t id = 0;          // of an offer, among all that `from` has made
  };

  /// An empty one, to be received into.
  explicit MpiFrame(std::size_t size)
      : size_(size), bytes_(std::make_unique_for_overwrite<std::byte[]>(size)) {}
  MpiFrame(const Header& header, std::span<const std::byte> head, std::span<const std::byte> body)
      : MpiFrame(sizeof(Header) + head.size() + body.size()) {
    std::memcpy(bytes_.get(), &header, sizeof(Header));
    if (!head.empty()) std::memcpy(bytes_.get() + sizeof(Header), head.data(), head.size());
    if (!body.empty()) {
      std::memcpy(bytes_.get() + sizeof(Header) + head.size(), body.data(), body.size());
    }
  }

  std::byte* data() { return bytes_.get(); }
  std::size_t size() const { return size_; }
  /// Whether the size fits the header.
  bool is_whole() const {
    return size_ >= sizeof(Header) && size_ >= sizeof(Header) + header().head_bytes;
  }
  Header header() const {
    Header header;
    std::memcpy(&header, bytes_.get(), sizeof(Header));
    return header;
  }
  std::span<const std::byte> head() const {
    return {bytes_.get() + sizeof(Header), header().head_bytes};
  }
  std::span<const std::byte> body() const {
    const std::size_t before = sizeof(Header) + header().head_bytes;
    return {bytes_.get() + before, size_ - before};
  }
  /// For bytes that MPI may read as long as the process lives.
  void leave_to_the_system() { (void)bytes_.release(); }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

/// One per process. Everything but get() and drive() is called with mutex() held; what it calls is
/// called so, too. Frames of one process arrive in the order in which they were posted.
class MpiHub {
 public:
  /// A channel is a group of ranks; several of them may be this process.
  struct Address {
    std::uint64_t channel = 0;
    int rank = 0;
    auto operator<=>(const Address&) const = default;
  };
  using Receiver = std::function<void(MpiFrame frame)>;

  static std::shared_ptr<MpiHub> get();
  explicit MpiHub(MpiRuntime& runtime);
  ~MpiHub();

  Mutex& mutex() { return mutex_; }
  MpiRuntime& runtime() { return runtime_; }
  /// How often the rank of the group has been opened before: a number that its other ranks get,
  /// too.
  std::uint64_t next_number(const Address& group) { return numbers_[group]++; }
  /// From now on `receiver` gets what is sent there, beginning with what came before.
  void open(const Address& address, Receiver receiver);
  /// What comes later is thrown away.
  void close(const Address& address);
  /// Sends; `done` is called when MPI has the bytes.
  void post(int process, MpiFrame frame, std::function<void()> done);
  /// Whether `ended()`, which is called with the mutex; if not, moves bytes and looks again.
  bool drive(const std::function<bool()>& ended);
  /// The same for what is set with the mutex held. One thread moves the bytes, others return.
  bool drive(const std::atomic<bool>& ended);

 private:
  /// A frame that MPI has: one that is being sent, or received from a process.
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;  // null: ended
    MpiFrame frame;
    std::function<void()> done;  // of a sent one
  };

  void progress();
  bool test_transfers();
  bool end_sends();
  bool take_received();
  bool find_frames();
  void dispatch(MpiFrame frame);

  MpiRuntime& runtime_;
  Mutex mutex_;
  std::list<Transfer> outgoing_;
  std::vector<std::deque<Transfer>> arriving_;  // by process
  std::map<Address, Receiver> open_;
  std::map<Address, std::vector<MpiFrame>> early_;  // for ranks that are not open yet
  std::set<Address> closed_;
  std::map<Address, std::uint64_t> numbers_;
  std::atomic<bool> is_driven_{false};
};

}  // namespace tutti::internal
