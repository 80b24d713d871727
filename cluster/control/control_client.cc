// The functions of a member, as questions to the server.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/control_client.h"

#include <algorithm>
#include <utility>

#include "cluster/control/control_session.h"
#include "cluster/control/health_rules.h"
#include "cluster/control/job_messages.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

using Job = class v1::Job::Stub::async;

TimePoint after(Duration duration) { return deadline_after(Clock::system().now(), duration); }
TimePoint soon() { return after(durations::kServerPatience); }

void check(std::string_view key, std::string_view value = "") {
  internal::check_store_key("control store", key);
  internal::check_store_value("control store", key, value);
}

/// Those who never came; if all have, those who are gone again.
std::string missing_names(const std::vector<Member>& members) {
  std::vector<std::string> never, gone;
  for (const Member& member : members) {
    if (!member.is_here) (member.pid == 0 ? never : gone).push_back(member.to_string());
  }
  return join(never.empty() ? gone : never);
}

}  // namespace

namespace internal {

void ControlSession::report_unwinding() noexcept {
  if (std::uncaught_exceptions() <= exceptions_at_begin_) return;
  std::string why;
  {
    MutexLock lock(mutex_);
    if (std::exchange(has_reported_unwinding_, true)) return;
    why = failure_.empty() ? "; its log says which" : concat(": ", failure_);
  }
  report_failure(Error(ErrorCode::kAborted, concat("ended by an exception", why)));
}

void ControlSession::note_failure(std::string_view text) {
  MutexLock lock(mutex_);
  failure_ = text;
}

void ControlSession::set(std::string_view key, std::string_view value) {
  check(key, value);
  v1::PutRequest request;
  request.set_request(next_request());
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  (void)call(&Job::Put, std::move(request), soon(), concat("no answer to setting '", key, "'"));
}

std::optional<std::string> ControlSession::get(std::string_view key) {
  check(key);
  v1::GetRequest request;
  request.set_key(std::string(key));
  const auto reply =
      call(&Job::Get, std::move(request), soon(), concat("no answer to reading '", key, "'"));
  if (!reply.has_value()) return std::nullopt;
  return reply.value();
}

std::string ControlSession::wait(std::string_view key, TimePoint deadline) {
  check(key);
  v1::GetRequest request;
  request.set_key(std::string(key));
  request.set_until_set(true);
  try {
    return call(&Job::Get, std::move(request), deadline,
                concat("control store: nobody has set '", key, "' in time"))
        .value();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    // What is there is found, however late the question was.
    if (auto value = get(key)) return *std::move(value);
    throw;
  }
}

bool ControlSession::remove(std::string_view key) {
  check(key);
  v1::DeleteRequest request;
  request.set_request(next_request());
  request.set_key(std::string(key));
  return call(&Job::Delete, std::move(request), soon(), concat("no answer to removing '", key, "'"))
      .was_there();
}

bool ControlSession::compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                                     std::string_view value) {
  check(key, value);
  v1::CompareAndSetRequest request;
  request.set_request(next_request());
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  if (expected) {
    check_store_value("control store", key, *expected);
    request.set_expected(std::string(*expected));
  }
  return call(&Job::CompareAndSet, std::move(request), soon(),
              concat("no answer to changing '", key, "'"))
      .is_set();
}

void ControlSession::wait_for_members(TimePoint deadline) {
  Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  const std::string self = self_.task.to_string();
  for (;;) {
    const TimePoint say_at = deadline_after(clock.now(), options_.say_every);
    try {
      v1::ListMembersRequest request;
      request.set_until_all_are_here(true);
      (void)call(&Job::ListMembers, std::move(request), std::min(deadline, say_at),
                 "no list of members in time");
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    }
    const std::string missing = missing_names(members());
    if (missing.empty()) return;
    const std::string time = seconds_text(clock.now() - begin);
    if (clock.now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "control: ", self, ": ", missing, " did not come within ",
           time, " s; start what is missing, or check its address and its log");
    }
    log_info(concat("control: ", self, " waits for ", missing, " since ", time, " s"));
  }
}

std::vector<Member> ControlSession::members() {
  const auto reply =
      call(&Job::ListMembers, v1::ListMembersRequest(), soon(), "no list of members in time");
  std::vector<Member> members;
  for (const v1::Member& member : reply.members()) members.push_back(from_proto(member));
  return members;
}

void ControlSession::report_failure(const Error& error) noexcept {
  try {
    v1::ReportFailureRequest request;
    request.set_code(static_cast<std::uint32_t>(error.code()));
    request.set_message(proto_text(error.message()));
    (void)call(&Job::ReportFailure, std::move(request), after(durations::kOneTry),
               "no answer to the report of a failure");
  } catch (const std::exception&) {  // the server is gone, which is news of its own
  }
}

void ControlSession::report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                                          std::string_view why) {
  v1::ReportDisconnectionRequest request;
  request.set_last_verdict(last_verdict);
  request.set_peer_job(proto_text(peer.job));
  request.set_peer_index(static_cast<std::uint32_t>(peer.index));
  request.set_message(proto_text(why));
  (void)call(&Job::ReportDisconnection, std::move(request), after(durations::kOneTry),
             concat("no answer to the report that the connection to ", peer.to_string(), " broke"));
}

void ControlSession::request_stop(std::string_view reason) {
  v1::RequestStopRequest request;
  request.set_reason(proto_text(reason));
  (void)call(&Job::RequestStop, std::move(request), soon(), "no answer to the request to stop");
}

bool ControlSession::stops_after(std::uint64_t step) {
  return gate_.stops_after(step, after(2 * durations::kSilentAfter));
}

}  // namespace internal

std::unique_ptr<ControlClient> connect_control(const std::string& target, const MemberTask& self,
                                               const ControlOptions& options) {
  return std::make_unique<internal::ControlSession>(target, self, options);
}

}  // namespace tutti
