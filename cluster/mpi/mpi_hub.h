// All frames that this process sends and receives by MPI, and whom they are for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tutti/cluster/mpi/mpi_frame.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/mpi/mpi_runtime.h"

namespace tutti::internal {

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
