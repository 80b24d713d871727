// JobService: the gRPC service of a job's control server. Maintains members, store, verdicts and
// the stop agreement.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/control/control_server.h"
#include "cluster/control/member.h"
#include "cluster/control/stop_agreement.h"
#include "cluster/net/socket.h"
#include "job.grpc.pb.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Table of the store's keys and values. Not thread-safe.
class StoreTable {
 public:
  /// `most_bytes`: limit on the total size of keys and values.
  explicit StoreTable(std::size_t most_bytes = std::size_t{256} << 20) : most_bytes_(most_bytes) {}

  /// Returns the value of the key; nullptr if there is no such key.
  const std::string* find(const std::string& key) const;
  /// Sets a value. Throws kInvalidArgument for an invalid key or value, and kResourceExhausted if
  /// the limit would be exceeded.
  void put(const std::string& key, const std::string& value);

 private:
  const std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::map<std::string, std::string> values_;
};

/// Stream to one member. Its functions return immediately and never call the service.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  virtual void send(const v1::JobEvent& event) = 0;
  virtual void close() = 0;
};

/// Implements the service Job. Holds its mutex while it calls links and finishes calls.
/// Thread-safe.
class JobService final : public v1::Job::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  JobService(ControlServerOptions options, ProcessProbe probe, Clock& clock = Clock::system());

  // The methods of job.proto.

  grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>* Join(Context* context) override;
  Reactor* Leave(Context* context, const v1::LeaveRequest* request, v1::LeaveReply*) override;
  Reactor* ListMembers(Context* context, const v1::ListMembersRequest* request,
                       v1::ListMembersReply* reply) override;
  Reactor* ReportFailure(Context* context, const v1::ReportFailureRequest* request,
                         v1::ReportFailureReply*) override;
  Reactor* ReportDisconnection(Context* context, const v1::ReportDisconnectionRequest* request,
                               v1::ReportDisconnectionReply*) override;
  Reactor* RequestStop(Context* context, const v1::RequestStopRequest* request,
                       v1::RequestStopReply*) override;
  Reactor* Get(Context* context, const v1::GetRequest* request, v1::GetReply* reply) override;
  Reactor* Put(Context* context, const v1::PutRequest* request, v1::PutReply*) override;

  // Events of a Join stream.

  /// Handles a new stream. Returns OK if the stream is accepted, else a status with the reason.
  grpc::Status join(std::shared_ptr<MemberLink> link, const v1::JoinRequest& request);
  /// Handles a report. Returns false if the report is invalid; the caller then closes the stream.
  bool report(const MemberLink* link, const v1::MemberReport& report);
  void closed(const MemberLink* link);

  // Functions for the hosting process.

  /// Detects silent, stuck and late members. Must be called every kTryAgain.
  void tick();
  /// Waits until every member has left or the job has given up on it.
  void wait_until_all_have_left(TimePoint deadline);
  /// Announces to all members that the server is shutting down; each stream ends after the
  /// announcement.
  void announce_server_end();
  std::vector<Member> members() const;
  std::vector<Verdict> verdicts_after(std::uint64_t number) const;
  std::vector<Member> missing() const;

 private:
  class Stream;
  class WaitingCall;
  struct Link {
    std::shared_ptr<MemberLink> link;
    MemberRecord* record = nullptr;  // null for an observer
    std::uint64_t num_sent = 0;      // number of verdicts sent
  };
  Link* find(const MemberLink* link) TUTTI_REQUIRES(mutex_);
  Link* find(const MemberRecord& record) TUTTI_REQUIRES(mutex_);
  MemberRecord* newest_of(const MemberTask& task) TUTTI_REQUIRES(mutex_);

  std::string refusal_of(const v1::Build& build, const JoiningProcess& process)
      TUTTI_REQUIRES(mutex_);
  bool has_left_for_next_server(const MemberRecord& record, const JoiningProcess& process) const;
  grpc::Status refused(const std::string& why) TUTTI_REQUIRES(mutex_);
  v1::JoinReply reply_to(const MemberRecord* record) const TUTTI_REQUIRES(mutex_);
  void add_link(std::shared_ptr<MemberLink> link, MemberRecord* record, std::uint64_t num_verdicts)
      TUTTI_REQUIRES(mutex_);
  MemberRecord& add_record(const v1::Build& build, const JoiningProcess& process, TimePoint now)
      TUTTI_REQUIRES(mutex_);
  void note(MemberRecord& record, const MemberProgress& progress) TUTTI_REQUIRES(mutex_);
  /// Returns the record of a calling member. Throws kInvalidArgument for an unknown number, and
  /// kUnavailable for a member that the job has given up on.
  MemberRecord& caller(std::uint64_t member) TUTTI_REQUIRES(mutex_);
  /// Runs `body` on the calling member's record, then finishes the call; if `body` throws, finishes
  /// it with that error.
  Reactor* answer(Context* context, std::uint64_t member,
                  const std::function<void(MemberRecord&)>& body);
  /// Finishes the call of a member, or of an observer if `member` is 0, as soon as `fill` has
  /// produced the reply. `is_for_all`: after the first try, does not call `fill` again until all
  /// members have joined.
  Reactor* answer_when(Context* context, std::uint64_t member, std::function<bool()> fill,
                       bool is_for_all = false);
  void answer_waiting() TUTTI_REQUIRES(mutex_);

  bool has_members() const TUTTI_REQUIRES(mutex_);
  void declare(MemberRecord& record, const Finding& finding) TUTTI_REQUIRES(mutex_);
  void give_up(MemberRecord& record, MemberRecord::Status status) TUTTI_REQUIRES(mutex_);
  /// Sends, in one event, the verdicts that have not yet been sent over this link.
  void send_verdicts(Link& link) TUTTI_REQUIRES(mutex_);
  /// Sends new verdicts to all links. In a large job, later verdicts about joins and leaves are
  /// batched; tick() sends them.
  void broadcast_verdicts(TimePoint now) TUTTI_REQUIRES(mutex_);
  void broadcast(const v1::JobEvent& event) TUTTI_REQUIRES(mutex_);
  void broadcast(const std::optional<v1::StopProposal>& proposal) TUTTI_REQUIRES(mutex_);
  std::vector<Member> list_members() const TUTTI_REQUIRES(mutex_);
  Member member_of(const MemberRecord& record) const TUTTI_REQUIRES(mutex_);
  void cancel_late_streams(TimePoint now) TUTTI_REQUIRES(mutex_);

  const ControlServerOptions options_;
  const ProcessProbe probe_;
  const Clock& clock_;
  const v1::Build build_;
  mutable Mutex mutex_;
  CondVar left_;  // notified when a member leaves or is given up on
  std::vector<Link> links_ TUTTI_GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Stream>> streams_ TUTTI_GUARDED_BY(mutex_);  // kept until OnDone()
  std::map<std::uint64_t, std::unique_ptr<MemberRecord>> records_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Verdict> verdicts_ TUTTI_GUARDED_BY(mutex_);
  TimePoint send_verdicts_at_ TUTTI_GUARDED_BY(mutex_) = TimePoint::min();
  std::vector<WaitingCall*> waiting_ TUTTI_GUARDED_BY(mutex_);  // owned by gRPC
  StoreTable store_ TUTTI_GUARDED_BY(mutex_);
  StopAgreement stop_ TUTTI_GUARDED_BY(mutex_);
  std::optional<TimePoint> last_tick_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"control"};
};

}  // namespace tutti::internal
