// The control server without its wire: members, store, verdicts, the step to stop at.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/control/control_server.h"
#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/control/message.h"
#include "tutti/cluster/control/stop_agreement.h"
#include "tutti/cluster/control/store_table.h"
#include "tutti/cluster/handshake/hello.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// A way to one member, given by the wire. Both functions return at once and never call back.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual void send(const Message& message) = 0;
  virtual void close() = 0;
};

/// Threads: any. Links are called with the core's mutex held.
class ControlCore {
 public:
  ControlCore(ControlServerOptions options, ProcessProbe probe);

  /// Whether a process that has proven who it is may come in: "" or the reason against it.
  std::string refusal_of(const PeerHello& hello);
  void opened(std::shared_ptr<MemberLink> link, const PeerHello& hello);
  /// False: it makes no sense; close the connection.
  bool received(const MemberLink* link, const Message& message, TimePoint now);
  void closed(const MemberLink* link, TimePoint now);
  /// Looks for the silent, the stuck and the late. Call it when poll_after() has passed.
  void tick(TimePoint now);
  Duration poll_after() const;

  /// Everybody who has joined has left, or was given up.
  void wait_until_all_have_left(TimePoint deadline);
  void say_server_leaves();
  std::vector<Member> members() const;
  std::vector<Verdict> verdicts_after(std::uint64_t number) const;
  std::vector<Member> missing() const;

 private:
  struct Link {
    std::shared_ptr<MemberLink> link;
    PeerHello hello;
    MemberRecord* record = nullptr;
  };
  struct Waiter {  // for all members
    std::uint64_t member, id;
  };
  Link* find(const MemberLink* link) TUTTI_REQUIRES(mutex_);
  Link* find(std::uint64_t member) TUTTI_REQUIRES(mutex_);
  MemberRecord* newest_of(const std::string& job, int index) TUTTI_REQUIRES(mutex_);

  void take(Link& link, std::uint64_t id, const JoinRequest& request, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const StoreRequest& request, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const MembersRequest& request, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const Heartbeat& heartbeat, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const FailureReport& report, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const StopRequest& request, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const StopAnswer& answer, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void take(Link& link, std::uint64_t id, const GoodBye& good_bye, TimePoint now)
      TUTTI_REQUIRES(mutex_);

  void let_in(Link& link, const JoinRequest& request) TUTTI_REQUIRES(mutex_);
  bool is_anybody_here() const TUTTI_REQUIRES(mutex_);
  bool is_fenced(const Link& link, const Message& message) TUTTI_REQUIRES(mutex_);
  MemberRecord& add_record(const Link& link, const JoinRequest& request, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void declare(MemberRecord& record, const Finding& finding) TUTTI_REQUIRES(mutex_);
  void give_up(MemberRecord& record, MemberRecord::Status status) TUTTI_REQUIRES(mutex_);
  void broadcast(const Message& message) TUTTI_REQUIRES(mutex_);
  void broadcast(const std::optional<StopProposal>& proposal) TUTTI_REQUIRES(mutex_);
  void answer_if_all_are_here() TUTTI_REQUIRES(mutex_);
  std::vector<Member> list_members() const TUTTI_REQUIRES(mutex_);
  Member member_of(const MemberRecord& record) const TUTTI_REQUIRES(mutex_);

  const ControlServerOptions options_;
  const ProcessProbe probe_;
  mutable Mutex mutex_;
  CondVar left_;  // somebody has, or was given up
  std::vector<Link> links_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::unique_ptr<MemberRecord>> records_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_joined_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<Verdict> verdicts_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Waiter> waiters_ TUTTI_GUARDED_BY(mutex_);
  StoreTable store_ TUTTI_GUARDED_BY(mutex_);
  StopAgreement stop_ TUTTI_GUARDED_BY(mutex_);
  std::optional<TimePoint> last_tick_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
