// What the server of a job knows and decides: members, store, verdicts, the step to stop at.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job.pb.h"
#include "tutti/cluster/control/control_server.h"
#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/control/stop_agreement.h"
#include "tutti/cluster/control/store_table.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// The stream to one member. Both functions return at once and never call back.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual void send(const v1::JobEvent& event) = 0;
  virtual void close() = 0;
};

/// The methods of the service Job, without gRPC's threads. Threads: any. Links and answers are
/// called with the core's mutex held.
class ControlCore {
 public:
  using Answer = std::function<void(const grpc::Status&)>;

  ControlCore(ControlServerOptions options, ProcessProbe probe);

  /// A member's stream begins; not OK: it is refused, with the reason.
  grpc::Status join(std::shared_ptr<MemberLink> link, const v1::JoinRequest& request,
                    TimePoint now);
  /// False: it makes no sense; close the stream.
  bool report(const MemberLink* link, const v1::MemberReport& report, TimePoint now);
  void closed(const MemberLink* link, TimePoint now);

  grpc::Status leave(const v1::LeaveRequest& request, TimePoint now);
  grpc::Status report_failure(const v1::ReportFailureRequest& request, TimePoint now);
  grpc::Status report_disconnection(const v1::ReportDisconnectionRequest& request, TimePoint now);
  grpc::Status request_stop(const v1::RequestStopRequest& request, TimePoint now);
  grpc::Status put(const v1::PutRequest& request, TimePoint now);
  grpc::Status remove(const v1::DeleteRequest& request, v1::DeleteReply& reply, TimePoint now);
  grpc::Status compare_and_set(const v1::CompareAndSetRequest& request,
                               v1::CompareAndSetReply& reply, TimePoint now);
  /// Answered now, or when there is something to say. `reply` stays until then.
  void get(const v1::GetRequest& request, v1::GetReply& reply, const Answer& answer, TimePoint now);
  void list_members(const v1::ListMembersRequest& request, v1::ListMembersReply& reply,
                    const Answer& answer, TimePoint now);
  /// The caller has gone. If it was not answered it is now.
  void cancel(const void* reply);

  /// Looks for the silent, the stuck and the late. Call it when poll_after() has passed.
  void tick(TimePoint now);
  Duration poll_after() const;

  /// All who have joined have left, or were given up.
  void wait_until_all_have_left(TimePoint deadline);
  void say_server_ends();
  std::vector<Member> members() const;
  std::vector<Verdict> verdicts_after(std::uint64_t number) const;
  std::vector<Member> missing() const;

 private:
  struct Link {
    std::shared_ptr<MemberLink> link;
    MemberRecord* record = nullptr;  // null: an observer
  };
  struct KeyWaiter {
    std::uint64_t member;
    std::string key;
    v1::GetReply* reply;
    Answer answer;
  };
  struct MembersWaiter {
    std::uint64_t member;
    v1::ListMembersReply* reply;
    Answer answer;
  };
  Link* find(const MemberLink* link) TUTTI_REQUIRES(mutex_);
  Link* find(const MemberRecord& record) TUTTI_REQUIRES(mutex_);
  MemberRecord* newest_of(const MemberTask& task) TUTTI_REQUIRES(mutex_);

  std::string refusal_of(const v1::Build& build, const JoiningProcess& process)
      TUTTI_REQUIRES(mutex_);
  v1::JoinReply reply_to(const MemberRecord* record) const TUTTI_REQUIRES(mutex_);
  void tell_state(MemberLink& link, std::uint64_t num_verdicts) TUTTI_REQUIRES(mutex_);
  MemberRecord& add_record(const v1::Build& build, const JoiningProcess& process, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void note(MemberRecord& record, const MemberProgress& progress, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  /// The record of a member that may ask for something. Throws kInvalidArgument for a number that
  /// is none, kUnavailable for a member that was given up.
  MemberRecord& caller(std::uint64_t member, TimePoint now) TUTTI_REQUIRES(mutex_);
  void check_caller_or_observer(std::uint64_t member, TimePoint now) TUTTI_REQUIRES(mutex_);
  /// What the member is answered when `body` has done what it asks for, or thrown.
  grpc::Status answer_to(std::uint64_t member, TimePoint now,
                         const std::function<void(MemberRecord&)>& body);

  bool is_anybody_here() const TUTTI_REQUIRES(mutex_);
  void declare(MemberRecord& record, const Finding& finding) TUTTI_REQUIRES(mutex_);
  void give_up(MemberRecord& record, MemberRecord::Status status) TUTTI_REQUIRES(mutex_);
  void broadcast(const v1::JobEvent& event) TUTTI_REQUIRES(mutex_);
  void broadcast(const std::optional<v1::StopProposal>& proposal) TUTTI_REQUIRES(mutex_);
  void answer_waiters(const std::string& key) TUTTI_REQUIRES(mutex_);
  void answer_if_all_are_here() TUTTI_REQUIRES(mutex_);
  std::vector<Member> list_members() const TUTTI_REQUIRES(mutex_);
  Member member_of(const MemberRecord& record) const TUTTI_REQUIRES(mutex_);

  const ControlServerOptions options_;
  const ProcessProbe probe_;
  const v1::Build build_;
  mutable Mutex mutex_;
  CondVar left_;  // a member has, or was given up
  std::vector<Link> links_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::unique_ptr<MemberRecord>> records_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Verdict> verdicts_ TUTTI_GUARDED_BY(mutex_);
  std::vector<KeyWaiter> key_waiters_ TUTTI_GUARDED_BY(mutex_);
  std::vector<MembersWaiter> members_waiters_ TUTTI_GUARDED_BY(mutex_);
  StoreTable store_ TUTTI_GUARDED_BY(mutex_);
  StopAgreement stop_ TUTTI_GUARDED_BY(mutex_);
  std::optional<TimePoint> last_tick_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
