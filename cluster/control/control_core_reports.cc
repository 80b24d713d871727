// What members say of themselves: that they fail, want to stop, or leave.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/cluster/control/control_core.h"
#include "tutti/cluster/control/job_messages.h"

namespace tutti::internal {

grpc::Status ControlCore::report_failure(const v1::ReportFailureRequest& request, TimePoint now) {
  MutexLock lock(mutex_);
  try {
    MemberRecord& record = caller(request.member(), now);
    record.has_failed = true;
    const std::string text = concat(record.joined.who.task.to_string(), ": ", request.message());
    // After a broken connection it may come twice.
    const auto is_it = [&](const Verdict& verdict) { return verdict.message == text; };
    if (std::ranges::none_of(verdicts_, is_it)) {
      declare(record, {record.number, VerdictKind::kFailed, true,
                       static_cast<ErrorCode>(request.code()), text});
    }
    return grpc::Status::OK;
  } catch (const Error& error) {
    return status_of(error);
  }
}

grpc::Status ControlCore::request_stop(const v1::RequestStopRequest& request, TimePoint now) {
  MutexLock lock(mutex_);
  try {
    const MemberRecord& from = caller(request.member(), now);
    std::map<std::uint64_t, std::uint64_t> steps;
    for (const auto& [number, record] : records_) {
      // Not the progress: its steps count evaluation, too, those of stops_after() do not. Members
      // that are further answer with their own step.
      if (record->status == MemberRecord::Status::kHere) steps[number] = 1;
    }
    const std::string reason = concat(from.joined.who.task.to_string(), ": ", request.reason());
    broadcast(stop_.request(reason, steps, now));
    return grpc::Status::OK;
  } catch (const Error& error) {
    return status_of(error);
  }
}

grpc::Status ControlCore::leave(const v1::LeaveRequest& request, TimePoint now) {
  MutexLock lock(mutex_);
  try {
    MemberRecord& record = caller(request.member(), now);
    if (record.status == MemberRecord::Status::kLeft) return grpc::Status::OK;
    if (request.has_progress()) note(record, from_proto(request.progress()), now);
    give_up(record, MemberRecord::Status::kLeft);
    if (!record.has_failed) {
      declare(record,
              {record.number, VerdictKind::kLeft, false, ErrorCode::kOk,
               concat(record.joined.who.to_string(), " left after step ", record.progress.step)});
    }
    return grpc::Status::OK;
  } catch (const Error& error) {
    return status_of(error);
  }
}

}  // namespace tutti::internal
