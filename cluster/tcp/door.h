// Where a rank's peers knock: nobody comes in who has not proven to belong to the job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/handshake/refusal_log.h"
#include "tutti/cluster/tcp/address_limit.h"
#include "tutti/cluster/tcp/opening.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Listens in a thread of its own, which sleeps while nobody knocks: so strangers cost the rank
/// nothing but what the door allows them (4 KiB and 5 s each, 256 at once of whom the oldest goes
/// first, a rate per address), and are shown out also while the rank computes. Threads: any.
class Door {
 public:
  struct Arrival {
    FileDescriptor socket;
    bool is_local = false;
    Resume opening;   // of a first connection: nothing received
    Digest256 key{};  // of the answer
  };

  /// `who` in the log: "tcp: rank 0 of 2".
  Door(std::string who, RankIdentity own, std::vector<Listener> listeners);
  /// Closes what was not taken.
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  const RankIdentity& own() const { return own_; }
  /// The next one who has proven itself and said what it wants.
  std::optional<Arrival> take();
  bool has_arrivals() const { return num_arrivals_.load() > 0; }
  /// poll() sees POLLIN while there are any.
  const FileDescriptor& bell() const { return bell_; }
  /// Why the last one was refused that was no mere stranger; "": there was none.
  std::string last_refusal() const;
  /// From now on its thread calls `action` whenever somebody has come, and at the time that the
  /// last call returned; it says whether somebody has. Return soon. Once.
  void call(std::function<TimePoint(bool has_visitors)> action);

 private:
  struct Newcomer;

  void serve();
  void wait();
  TimePoint act();
  void read_all(TimePoint now);
  bool is_settled(Newcomer& newcomer, TimePoint now);
  bool shake_hands(Newcomer& newcomer, TimePoint now);
  bool read_opening(Newcomer& newcomer, TimePoint now);
  void accept_all(const Listener& listener, TimePoint now);
  void admit(FileDescriptor socket, bool is_local, TimePoint now);
  void refuse(const Newcomer& newcomer, const std::string& reason, TimePoint now);
  void ring(Arrival arrival);

  const RankIdentity own_;
  const std::vector<Listener> listeners_;
  const FileDescriptor bell_, wake_;
  std::atomic<int> num_arrivals_{0};
  std::atomic<bool> stopping_{false};
  // The thread's own.
  std::list<Newcomer> newcomers_;
  std::vector<pollfd> descriptors_;
  AddressLimit limit_;
  RefusalLog refusals_, strangers_;
  TimePoint accept_again_{};
  bool has_visitors_ = false;  // since the last action

  mutable Mutex mutex_;
  std::list<Arrival> arrivals_ TUTTI_GUARDED_BY(mutex_);
  std::string last_refusal_ TUTTI_GUARDED_BY(mutex_);
  std::function<TimePoint(bool)> action_ TUTTI_GUARDED_BY(mutex_);
  TimePoint action_at_ TUTTI_GUARDED_BY(mutex_) = TimePoint::max();
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
