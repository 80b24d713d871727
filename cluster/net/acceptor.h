// Accepts a rank's peers: none that has not proven to belong to the job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "tutti/cluster/net/handshake.h"
#include "tutti/cluster/net/socket.h"
#include "tutti/cluster/net/strangers.h"

namespace tutti {
class Interruption;
}

namespace tutti::internal {

/// Whether this hello is of that rank in that run.
bool is_rank(const PeerHello& hello, int rank, std::uint64_t nonce);

/// Listens while the group connects, without a thread of its own. A stranger costs what it is
/// allowed (4 KiB and 5 s each, 256 at once of whom the oldest goes first, a rate per address) and
/// a line in the log now and then. Threads: one at a time.
class Acceptor {
 public:
  struct Callbacks {
    /// Why a rank that has proven to belong to the job is refused all the same; "": it is welcome.
    /// `refusal`: it is refused already, for it does not fit. May throw.
    std::function<std::string(const PeerHello& hello, const std::string& refusal)> decide;
    /// A rank was let in.
    std::function<void(int rank, FileDescriptor socket, bool is_local)> arrived;
  };

  /// `who` in the log: "tcp: rank 0 of 2"; `own`: what it says of itself (make_rank_hello()).
  Acceptor(std::string who, PeerHello own, JobSecret secret, std::vector<Listener> listeners,
           Callbacks callbacks);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// Serves once, as soon as there is something to do, `other` is ready (its descriptor may be -1),
  /// or the deadline has come. Throws what `interruption` says; may be null.
  void serve(pollfd& other, TimePoint deadline, const Interruption* interruption);
  /// Why the last one was refused that was no mere stranger; "": there was none.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Newcomer;

  void read_all(TimePoint now);
  bool is_settled(Newcomer& newcomer, TimePoint now);
  bool read(Newcomer& newcomer);
  void accept_all(const Listener& listener, TimePoint now);
  void admit(FileDescriptor socket, bool is_local, TimePoint now);
  void refuse(const Newcomer& newcomer, const std::string& reason, TimePoint now);

  const PeerHello own_;
  const JobSecret secret_;
  const std::vector<Listener> listeners_;
  const Callbacks callbacks_;
  std::list<Newcomer> newcomers_;
  AddressLimit limit_;
  RefusalLog refusals_, strangers_;
  std::string last_refusal_;
  TimePoint accept_again_{};
};

}  // namespace tutti::internal
