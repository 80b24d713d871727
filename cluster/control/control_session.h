// A member of a job: its thread, its stream and the calls under way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/control/control_client.h"
#include "cluster/control/health_rules.h"
#include "cluster/control/stop_agreement.h"
#include "cluster/grpc/grpc_channel.h"
#include "job.grpc.pb.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class JobStream;

/// Threads: any, all functions.
class ControlSession final : public ControlClient {
 public:
  /// Connects and joins; throws as connect_control().
  ControlSession(const std::string& target, const MemberTask& self, const ControlOptions& options);
  ~ControlSession() override;

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override;
  bool remove(std::string_view key) override;
  bool compare_and_set(std::string_view key, std::optional<std::string_view> expected,
                       std::string_view value) override;
  void wait_for_members(TimePoint deadline) override;
  std::vector<Member> members() override;
  Member self() const override { return self_; }
  std::vector<Verdict> verdicts() const override;
  void report_failure(const Error& error) noexcept override;
  void report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                            std::string_view why) override;
  void report_unwinding() noexcept override;
  void note_failure(std::string_view text) override;
  void request_stop(std::string_view reason) override;
  std::optional<std::uint64_t> agreed_stop_step() const override { return gate_.final_step(); }
  bool stops_after(std::uint64_t step) override;
  std::string stop_reason() const override { return gate_.reason(); }
  void leave() noexcept override;

 private:
  template <class Request, class Reply>
  using Method = void (v1::Job::Stub::async::*)(grpc::ClientContext*, const Request*, Reply*,
                                                std::function<void(grpc::Status)>);
  /// Calls the server and waits for its answer; a call that a broken connection ended is made again
  /// on the next one. Throws what the server answers, kDeadlineExceeded as `what`, kUnavailable
  /// when the server is gone.
  template <class Request, class Reply>
  Reply call(Method<Request, Reply> method, Request request, TimePoint deadline,
             const std::string& what) {
    request.set_member(member_);
    Reply reply;
    const Start start = [&](v1::Job::Stub& stub, grpc::ClientContext& context,
                            std::function<void(grpc::Status)> done) {
      reply.Clear();
      (stub.async()->*method)(&context, &request, &reply, std::move(done));
    };
    perform(start, deadline, what);
    return reply;
  }
  /// For requests that change something.
  std::uint64_t next_request() { return ++num_requests_; }

  using Start =
      std::function<void(v1::Job::Stub&, grpc::ClientContext&, std::function<void(grpc::Status)>)>;
  void perform(const Start& start, TimePoint deadline, const std::string& what);

  ConnectAttempt join_once(TimePoint deadline);
  std::string server_name() const;

  void run();
  bool reconnect();
  Duration heartbeat_every() const { return std::chrono::milliseconds(welcome_.heartbeat_ms()); }
  Duration silent_after() const { return std::chrono::milliseconds(welcome_.silent_ms()); }
  Duration unreachable_after() const {
    return std::chrono::milliseconds(welcome_.unreachable_ms());
  }
  bool is_on_its_machine() const;
  bool hosts_the_server() const;
  /// State of its process; unknown on another machine.
  ProcessState state_of_server() const;
  void renew();
  void take(const v1::JobEvent& event);
  void take_verdict(Verdict verdict);
  void send(v1::MemberReport report);
  v1::Progress progress() const;
  std::optional<Verdict> judge_server(TimePoint now) const;
  Verdict verdict_on_server(VerdictKind kind, const std::string& what) const;
  void end(ErrorCode code, const std::string& reason);

  const int exceptions_at_begin_ = std::uncaught_exceptions();
  const Endpoint endpoint_;
  const ControlOptions options_;
  Member self_;
  v1::JoinRequest request_;
  // The last one; of the constructor, then of the thread.
  v1::JoinReply welcome_;
  Member host_;
  std::atomic<std::uint64_t> member_{0};  // as the server numbers this process
  StopGate gate_;
  Duration join_patience_ = durations::kSilentAfter;  // for the next attempt to join
  TimePoint last_heard_;                              // of the server; the thread's
  bool knows_history_ = false;                        // the same
  std::atomic<std::uint64_t> num_requests_{0};

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<JobStream> stream_ TUTTI_GUARDED_BY(mutex_);
  std::vector<Verdict> verdicts_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // why there are no more answers
  std::string failure_ TUTTI_GUARDED_BY(mutex_);         // what note_failure() said last
  bool has_reported_unwinding_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
