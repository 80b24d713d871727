// What members say of themselves: that they fail, miss another one, want to stop, or leave.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/cluster/control/control_core.h"
#include "tutti/cluster/control/job_messages.h"

namespace tutti::internal {

grpc::Status ControlCore::report_failure(const v1::ReportFailureRequest& request, TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    record.has_failed = true;
    const std::string text = concat(record.joined.who.task.to_string(), ": ", request.message());
    // After a broken connection it may come twice.
    const auto is_it = [&](const Verdict& verdict) { return verdict.message == text; };
    if (std::ranges::none_of(verdicts_, is_it)) {
      declare(record, {record.number, VerdictKind::kFailed, true,
                       static_cast<ErrorCode>(request.code()), text});
    }
  });
}

grpc::Status ControlCore::report_disconnection(const v1::ReportDisconnectionRequest& request,
                                               TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    const MemberTask task{proto_text(request.peer_job()), static_cast<int>(request.peer_index())};
    const MemberRecord* const peer = newest_of(task);
    const std::string who = record.joined.who.task.to_string();
    if (peer == nullptr || peer == &record) {
      fail(ErrorCode::kInvalidArgument, "control: ", who, " lost its connection to ",
           task.to_string(), "; expected another member of the job");
    }
    if (request.last_verdict() > verdicts_.size()) {
      fail(ErrorCode::kInvalidArgument, "control: ", who, " lost a connection that came after ",
           "verdict ", request.last_verdict(), "; expected at most ", verdicts_.size());
    }
    // Its other end told it first, or there is a better reason, which ends the same collectives.
    const auto came_since = [&](const Verdict& verdict) {
      return verdict.is_fatal && verdict.number > request.last_verdict();
    };
    const bool both_are_here =
        record.status == MemberRecord::Status::kHere && peer->status == MemberRecord::Status::kHere;
    if (both_are_here && std::ranges::none_of(verdicts_, came_since)) {
      declare(record,
              {record.number, VerdictKind::kDisconnected, true, ErrorCode::kUnavailable,
               concat(who, " lost its connection to ", task.to_string(), ": ", request.message())});
    }
  });
}

grpc::Status ControlCore::request_stop(const v1::RequestStopRequest& request, TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord& from) TUTTI_REQUIRES(mutex_) {
    std::map<std::uint64_t, std::uint64_t> steps;
    for (const auto& [number, record] : records_) {
      // Not the progress: its steps count evaluation, too, those of stops_after() do not. Members
      // that are further answer with their own step.
      if (record->status == MemberRecord::Status::kHere) steps[number] = 1;
    }
    const std::string reason = concat(from.joined.who.task.to_string(), ": ", request.reason());
    broadcast(stop_.request(proto_text(reason), steps, now));
  });
}

grpc::Status ControlCore::leave(const v1::LeaveRequest& request, TimePoint now) {
  return answer_to(request.member(), now, [&](MemberRecord& record) TUTTI_REQUIRES(mutex_) {
    if (record.status == MemberRecord::Status::kLeft) return;
    if (request.has_progress()) note(record, from_proto(request.progress()), now);
    give_up(record, MemberRecord::Status::kLeft);
    if (!record.has_failed) {
      declare(record,
              {record.number, VerdictKind::kLeft, false, ErrorCode::kOk,
               concat(record.joined.who.to_string(), " left after step ", record.progress.step)});
    }
  });
}

}  // namespace tutti::internal
