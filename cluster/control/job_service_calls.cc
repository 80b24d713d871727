// The methods of the service Job: what members ask, and say of themselves.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "cluster/control/job_messages.h"
#include "cluster/control/job_service.h"
#include "cluster/grpc/grpc_channel.h"

namespace tutti::internal {
namespace {

grpc::Status status_of(grpc::ServerContextBase& context, const Error& error) {
  return to_status(context, Error(error.code(), proto_text(error.message())));
}

Error given_up(const MemberRecord& record) {
  return Error(ErrorCode::kUnavailable, concat("control: ", record.joined.who.to_string(),
                                               " was given up by the job; start it anew"));
}

}  // namespace

/// A call that is answered when there is something to say. gRPC owns it until OnDone().
class JobService::WaitingCall final : public Reactor {
 public:
  WaitingCall(JobService& service, Context& context, std::uint64_t member,
              std::function<bool()> fill, bool is_for_all)
      : member(member),
        is_for_all(is_for_all),
        service_(service),
        context_(context),
        fill_(std::move(fill)) {}

  /// Once: afterwards it may be gone. False: there is nothing to say yet.
  bool finish_if_ready() {
    const bool is_ready = fill_();
    if (is_ready) Finish(grpc::Status::OK);
    return is_ready;
  }
  void fail(const Error& error) { Finish(status_of(context_, error)); }
  /// The caller has gone. If it was not answered it is now.
  void OnCancel() override {
    MutexLock lock(service_.mutex_);
    if (std::erase(service_.waiting_, this) > 0) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { const std::unique_ptr<WaitingCall> self(this); }

  const std::uint64_t member;
  const bool is_for_all;

 private:
  JobService& service_;
  Context& context_;
  const std::function<bool()> fill_;
};

MemberRecord& JobService::caller(std::uint64_t member) {
  const auto found = records_.find(member);
  if (found == records_.end()) {
    fail(ErrorCode::kInvalidArgument, "control: there is no member number ", member,
         "; expected the one that Join gave");
  }
  MemberRecord& record = *found->second;
  record.last_heard = clock_.now();
  if (record.status == MemberRecord::Status::kGivenUp) throw given_up(record);
  return record;
}

JobService::Reactor* JobService::answer(Context* context, std::uint64_t member,
                                        const std::function<void(MemberRecord&)>& body) {
  Reactor* const reactor = context->DefaultReactor();
  MutexLock lock(mutex_);
  try {
    body(caller(member));
    reactor->Finish(grpc::Status::OK);
  } catch (const Error& error) {
    reactor->Finish(status_of(*context, error));
  }
  return reactor;
}

JobService::Reactor* JobService::answer_when(Context* context, std::uint64_t member,
                                             std::function<bool()> fill, bool is_for_all) {
  auto call = std::make_unique<WaitingCall>(*this, *context, member, std::move(fill), is_for_all);
  MutexLock lock(mutex_);
  try {
    if (member != 0) (void)caller(member);
    if (!call->finish_if_ready()) waiting_.push_back(call.get());
  } catch (const Error& error) {
    call->fail(error);
  }
  return call.release();
}

void JobService::answer_waiting() {
  std::erase_if(waiting_, [](WaitingCall* call) { return call->finish_if_ready(); });
}

void JobService::give_up(MemberRecord& record, MemberRecord::Status status) {
  record.status = status;
  left_.notify_all();
  store_.forget(record.number);
  std::erase_if(waiting_, [&](WaitingCall* call) {
    if (call->member != record.number) return false;
    call->fail(given_up(record));
    return true;
  });
  broadcast(stop_.forget(record.number));
}

JobService::Reactor* JobService::Put(Context* context, const v1::PutRequest* request,
                                     v1::PutReply*) {
  return answer(context, request->member(), [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    store_.put({request->member(), request->request()}, request->key(), request->value());
    answer_waiting();
  });
}

JobService::Reactor* JobService::Delete(Context* context, const v1::DeleteRequest* request,
                                        v1::DeleteReply* reply) {
  return answer(context, request->member(), [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    reply->set_was_there(store_.remove({request->member(), request->request()}, request->key()));
  });
}

JobService::Reactor* JobService::CompareAndSet(Context* context,
                                               const v1::CompareAndSetRequest* request,
                                               v1::CompareAndSetReply* reply) {
  return answer(context, request->member(), [&](MemberRecord&) TUTTI_REQUIRES(mutex_) {
    std::optional<std::string> expected;
    if (request->has_expected()) expected = request->expected();
    reply->set_is_set(store_.compare_and_set({request->member(), request->request()},
                                             request->key(), expected, request->value()));
    answer_waiting();
  });
}

JobService::Reactor* JobService::Get(Context* context, const v1::GetRequest* request,
                                     v1::GetReply* reply) {
  return answer_when(context, request->member(), [=, this]() TUTTI_REQUIRES(mutex_) {
    const std::string* const value = store_.find(request->key());
    if (value != nullptr) reply->set_value(*value);
    return value != nullptr || !request->until_set();
  });
}

JobService::Reactor* JobService::ListMembers(Context* context,
                                             const v1::ListMembersRequest* request,
                                             v1::ListMembersReply* reply) {
  const auto fill = [=, this]() TUTTI_REQUIRES(mutex_) {
    const std::vector<Member> list = list_members();
    const bool is_ready = !request->until_all_are_here() ||
                          std::ranges::all_of(list, [](const Member& m) { return m.is_here; });
    if (!is_ready) return false;
    for (const Member& member : list) *reply->add_members() = to_proto(member);
    return true;
  };
  return answer_when(context, request->member(), fill, true);
}

std::vector<Member> JobService::missing() const {
  MutexLock lock(mutex_);
  if (std::ranges::none_of(waiting_, &WaitingCall::is_for_all)) return {};
  std::vector<Member> members = list_members();
  std::erase_if(members, [](const Member& member) { return member.is_here; });
  return members;
}

JobService::Reactor* JobService::ReportFailure(Context* context,
                                               const v1::ReportFailureRequest* request,
                                               v1::ReportFailureReply*) {
  return answer(context, request->member(), [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    record.has_failed = true;
    const std::string text = concat(record.joined.who.task.to_string(), ": ", request->message());
    // After a broken connection it may come twice.
    const auto is_it = [&](const Verdict& verdict) { return verdict.message == text; };
    if (std::ranges::none_of(verdicts_, is_it)) {
      declare(record, {record.number, VerdictKind::kFailed, true,
                       static_cast<ErrorCode>(request->code()), text});
    }
  });
}

JobService::Reactor* JobService::ReportDisconnection(Context* context,
                                                     const v1::ReportDisconnectionRequest* request,
                                                     v1::ReportDisconnectionReply*) {
  return answer(context, request->member(), [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    const MemberTask task{proto_text(request->peer_job()), static_cast<int>(request->peer_index())};
    const MemberRecord* const peer = newest_of(task);
    const std::string who = record.joined.who.task.to_string();
    if (peer == nullptr || peer == &record) {
      fail(ErrorCode::kInvalidArgument, "control: ", who, " lost its connection to ",
           task.to_string(), "; expected another member of the job");
    }
    if (request->last_verdict() > verdicts_.size()) {
      fail(ErrorCode::kInvalidArgument, "control: ", who, " lost a connection that came after ",
           "verdict ", request->last_verdict(), "; expected at most ", verdicts_.size());
    }
    // Its other end told it first, or there is a better reason, which ends the same collectives.
    const auto came_since = [&](const Verdict& verdict) {
      return verdict.is_fatal && verdict.number > request->last_verdict();
    };
    const bool both_are_here =
        record.status == MemberRecord::Status::kHere && peer->status == MemberRecord::Status::kHere;
    if (both_are_here && std::ranges::none_of(verdicts_, came_since)) {
      declare(record, {record.number, VerdictKind::kDisconnected, true, ErrorCode::kUnavailable,
                       concat(who, " lost its connection to ", task.to_string(), ": ",
                              request->message())});
    }
  });
}

JobService::Reactor* JobService::RequestStop(Context* context,
                                             const v1::RequestStopRequest* request,
                                             v1::RequestStopReply*) {
  return answer(context, request->member(), [&](MemberRecord& from) TUTTI_REQUIRES(mutex_) {
    std::map<std::uint64_t, std::uint64_t> steps;
    for (const auto& [number, record] : records_) {
      // Not the progress: its steps count evaluation, too, those of stops_after() do not. Members
      // that are further answer with their own step.
      if (record->status == MemberRecord::Status::kHere) steps[number] = 1;
    }
    const std::string reason = concat(from.joined.who.task.to_string(), ": ", request->reason());
    broadcast(stop_.request(proto_text(reason), steps, clock_.now()));
  });
}

JobService::Reactor* JobService::Leave(Context* context, const v1::LeaveRequest* request,
                                       v1::LeaveReply*) {
  return answer(context, request->member(), [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    if (record.status == MemberRecord::Status::kLeft) return;
    if (request->has_progress()) note(record, from_proto(request->progress()));
    give_up(record, MemberRecord::Status::kLeft);
    if (!record.has_failed) {
      declare(record,
              {record.number, VerdictKind::kLeft, false, ErrorCode::kOk,
               concat(record.joined.who.to_string(), " left after step ", record.progress.step)});
    }
  });
}

}  // namespace tutti::internal
