// The functions of a member, as questions to the server.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_client.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tutti/cluster/control/control_session.h"
#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/control/job_messages.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

using Job = class v1::Job::Stub::async;

/// The server answers at once, or it is lost long before this.
constexpr Duration kLongestAnswer = std::chrono::seconds(60);
constexpr Duration kLongestAgreement = std::chrono::seconds(4);
/// Of what the others learn in other ways, too, only later.
constexpr Duration kLongestReport = std::chrono::seconds(1);

TimePoint after(Duration duration) { return deadline_after(Clock::system().now(), duration); }
TimePoint soon() { return after(kLongestAnswer); }

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

/// See ControlClient.
class JobMember final : public ControlClient {
 public:
  JobMember(const std::string& target, const MemberTask& self, const ControlOptions& options)
      : session_(target, self, options) {}
  ~JobMember() override;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override {
    return wait_for_value(key, deadline, std::nullopt);
  }
  std::string wait_unless_lost(std::string_view key, std::uint64_t last_verdict,
                               TimePoint deadline) override {
    return wait_for_value(key, deadline, last_verdict);
  }
  bool remove(std::string_view key) override;
  bool compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                       std::string_view value) override;
  void wait_for_members(TimePoint deadline) override;
  std::vector<Member> members() override;
  Member self() const override { return session_.self(); }
  std::vector<Verdict> verdicts() const override { return session_.verdicts(); }
  void report_failure(const Error& error) noexcept override;
  void report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                            std::string_view why) override;
  void note_failure(std::string_view text) override;
  void request_stop(std::string_view reason) override;
  std::optional<std::uint64_t> agreed_stop_step() const override {
    return session_.gate().final_step();
  }
  bool stops_after(std::uint64_t step) override {
    return session_.gate().stops_after(step, after(kLongestAgreement));
  }
  std::string stop_reason() const override { return session_.gate().reason(); }
  void leave() noexcept override { session_.leave(); }

 private:
  std::string wait_for_value(std::string_view key, TimePoint deadline,
                             std::optional<std::uint64_t> last_verdict);

  const int exceptions_at_begin_ = std::uncaught_exceptions();
  internal::ControlSession session_;
  Mutex mutex_;
  std::string failure_ TUTTI_GUARDED_BY(mutex_);
};

JobMember::~JobMember() {
  if (std::uncaught_exceptions() > exceptions_at_begin_) {
    MutexLock lock(mutex_);
    const std::string why = failure_.empty() ? "; its log says which" : concat(": ", failure_);
    report_failure(Error(ErrorCode::kAborted, concat("ended by an exception", why)));
  }
  leave();
}

void JobMember::note_failure(std::string_view text) {
  MutexLock lock(mutex_);
  failure_ = text;
}

void JobMember::set(std::string_view key, std::string_view value) {
  check(key, value);
  v1::PutRequest request;
  request.set_request(session_.next_request());
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  (void)session_.call(&Job::Put, std::move(request), soon(),
                      concat("no answer to setting '", key, "'"));
}

std::optional<std::string> JobMember::get(std::string_view key) {
  check(key);
  v1::GetRequest request;
  request.set_key(std::string(key));
  const auto reply = session_.call(&Job::Get, std::move(request), soon(),
                                   concat("no answer to reading '", key, "'"));
  if (!reply.has_value()) return std::nullopt;
  return reply.value();
}

std::string JobMember::wait_for_value(std::string_view key, TimePoint deadline,
                                      std::optional<std::uint64_t> last_verdict) {
  check(key);
  v1::GetRequest request;
  request.set_key(std::string(key));
  request.set_until_set(true);
  try {
    return session_
        .call(&Job::Get, std::move(request), deadline,
              concat("control store: nobody has set '", key, "' in time"), last_verdict)
        .value();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    // What is there is found, however late the question was.
    if (auto value = get(key)) return *std::move(value);
    throw;
  }
}

bool JobMember::remove(std::string_view key) {
  check(key);
  v1::DeleteRequest request;
  request.set_request(session_.next_request());
  request.set_key(std::string(key));
  return session_
      .call(&Job::Delete, std::move(request), soon(), concat("no answer to removing '", key, "'"))
      .was_there();
}

bool JobMember::compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                                std::string_view value) {
  check(key, value);
  v1::CompareAndSetRequest request;
  request.set_request(session_.next_request());
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  if (expected) {
    internal::check_store_value("control store", key, *expected);
    request.set_expected(std::string(*expected));
  }
  return session_
      .call(&Job::CompareAndSet, std::move(request), soon(),
            concat("no answer to changing '", key, "'"))
      .is_set();
}

void JobMember::wait_for_members(TimePoint deadline) {
  Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  const std::string self = session_.self().task.to_string();
  for (;;) {
    const TimePoint say_at = deadline_after(clock.now(), session_.options().say_every);
    try {
      v1::ListMembersRequest request;
      request.set_until_all_are_here(true);
      (void)session_.call(&Job::ListMembers, std::move(request), std::min(deadline, say_at),
                          "no list of members in time");
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDeadlineExceeded) throw;
    }
    const std::string missing = missing_names(members());
    if (missing.empty()) return;
    const std::string time = internal::seconds_text(clock.now() - begin);
    if (clock.now() >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "control: ", self, ": ", missing, " did not come within ",
           time, " s; start what is missing, or check its address and its log");
    }
    log_info(concat("control: ", self, " waits for ", missing, " since ", time, " s"));
  }
}

std::vector<Member> JobMember::members() {
  const auto reply = session_.call(&Job::ListMembers, v1::ListMembersRequest(), soon(),
                                   "no list of members in time");
  std::vector<Member> members;
  for (const v1::Member& member : reply.members()) members.push_back(internal::from_proto(member));
  return members;
}

void JobMember::report_failure(const Error& error) noexcept {
  try {
    v1::ReportFailureRequest request;
    request.set_code(static_cast<std::uint32_t>(error.code()));
    request.set_message(internal::proto_text(error.message()));
    (void)session_.call(&Job::ReportFailure, std::move(request), after(kLongestReport),
                        "no answer to the report of a failure");
  } catch (const std::exception&) {  // the server is gone, which is news of its own
  }
}

void JobMember::report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                                     std::string_view why) {
  v1::ReportDisconnectionRequest request;
  request.set_last_verdict(last_verdict);
  request.set_peer_job(internal::proto_text(peer.job));
  request.set_peer_index(static_cast<std::uint32_t>(peer.index));
  request.set_message(internal::proto_text(why));
  (void)session_.call(
      &Job::ReportDisconnection, std::move(request), after(kLongestReport),
      concat("no answer to the report that the connection to ", peer.to_string(), " broke"));
}

void JobMember::request_stop(std::string_view reason) {
  v1::RequestStopRequest request;
  request.set_reason(internal::proto_text(reason));
  (void)session_.call(&Job::RequestStop, std::move(request), soon(),
                      "no answer to the request to stop");
}

}  // namespace

std::unique_ptr<ControlClient> connect_control(const std::string& target, const MemberTask& self,
                                               const ControlOptions& options) {
  return std::make_unique<JobMember>(target, self, options);
}

}  // namespace tutti
