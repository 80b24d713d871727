// Why attempts ended and closures failed, as parts of messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator.pb.h"
#include "strategy/parameter_server/coordinator/closure_event.h"
#include "strategy/parameter_server/protocol/message.h"

namespace tutti::internal {

/// Origin, code and text of anything that has them.
template <class Value, class Message>
void put_cause(const Value& value, Message& out) {
  out.set_origin(static_cast<std::uint32_t>(value.origin));
  out.set_code(static_cast<std::uint32_t>(value.code));
  out.set_text(value.text);
}
/// Throws kDataLoss for a number that names nothing, as all that read.
template <class Value, class Message>
void get_cause(const Message& in, Value& value) {
  value.origin = checked_enum(in.origin(), ErrorOrigin::kUser, ErrorOrigin::kServer);
  value.code = checked_enum(in.code(), ErrorCode::kOk, ErrorCode::kDataLoss);
  value.text = in.text();
}

inline void put_report(const AttemptReport& report, v1::AttemptReport& out) {
  out.set_kind(static_cast<std::uint32_t>(report.kind));
  out.set_worker(report.worker);
  put_cause(report, out);
}
inline AttemptReport get_report(const v1::AttemptReport& in) {
  using Kind = AttemptReport::Kind;
  AttemptReport report;
  report.kind = checked_enum(in.kind(), Kind::kNotStarted, Kind::kWorkerLost);
  report.worker = in.worker();
  get_cause(in, report);
  return report;
}

inline void put_failure(const ClosureFailure& failure, v1::ClosureFailure& out) {
  out.set_closure(failure.closure);
  out.set_attempt(failure.attempt);
  out.set_worker(failure.worker);
  put_cause(failure, out);
}
inline ClosureFailure get_failure(const v1::ClosureFailure& in) {
  ClosureFailure failure{in.closure(), in.attempt(), in.worker()};
  get_cause(in, failure);
  return failure;
}

}  // namespace tutti::internal
