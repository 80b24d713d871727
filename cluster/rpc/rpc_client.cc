// Replies, and the client as its user sees it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_client.h"

#include <utility>

#include "tutti/cluster/control/health_rules.h"
#include "tutti/cluster/rpc/client_session.h"

namespace tutti {
namespace internal {

PendingReply::PendingReply(std::shared_ptr<const std::string> what)
    : what_(std::move(what)), begin_(Clock::system().now()) {}

bool PendingReply::is_ready() const {
  MutexLock lock(mutex_);
  return is_ready_;
}

bool PendingReply::wait_until_ready(TimePoint deadline) {
  MutexLock lock(mutex_);
  return changed_.wait_until(mutex_, deadline,
                             [this]() TUTTI_REQUIRES(mutex_) { return is_ready_; });
}

void PendingReply::when_ready(std::function<void()> told) {
  {
    MutexLock lock(mutex_);
    if (!is_ready_) {
      told_ = std::move(told);
      return;
    }
  }
  told();
}

Packet PendingReply::wait(TimePoint deadline) {
  (void)wait_until_ready(deadline);
  MutexLock lock(mutex_);
  if (!is_ready_) {
    fail(ErrorCode::kDeadlineExceeded, "rpc: ", *what_, " did not answer within ",
         seconds_text(Clock::system().now() - begin_), " s");
  }
  if (error_) throw *error_;
  if (std::exchange(is_taken_, true)) {
    fail(ErrorCode::kFailedPrecondition, "rpc: ", *what_,
         ": the answer was taken before; expected one successful wait() per reply");
  }
  return std::move(answer_);
}

void PendingReply::set(Packet answer) { settle(std::move(answer), std::nullopt); }

void PendingReply::set_error(Error error) { settle({}, std::move(error)); }

void PendingReply::settle(Packet answer, std::optional<Error> error) {
  std::function<void()> told;
  {
    MutexLock lock(mutex_);
    if (std::exchange(is_ready_, true)) return;
    answer_ = std::move(answer);
    error_ = std::move(error);
    changed_.notify_all();
    told.swap(told_);
  }
  if (told) told();
}

namespace {

class SessionClient final : public RpcClient {
 public:
  explicit SessionClient(std::shared_ptr<ClientSession> session) : session_(std::move(session)) {}
  ~SessionClient() override { session_->leave(); }

  std::shared_ptr<RpcReply> start(Packet request) override {
    return session_->start(std::move(request));
  }
  void fail_all(const Error& error) override { session_->fail_all(error); }
  std::uint64_t server_incarnation() const override { return session_->server_incarnation(); }
  std::string server_name() const override { return session_->server_name(); }
  std::optional<std::string> why_away() const override { return session_->why_away(); }
  std::optional<TimePoint> away_since() const override { return session_->away_since(); }
  bool takes_calls() const override { return session_->takes_calls(); }

 private:
  const std::shared_ptr<ClientSession> session_;
};

}  // namespace
}  // namespace internal

std::unique_ptr<RpcClient> RpcClient::connect(const std::string& target,
                                              const RpcClientOptions& options) {
  auto session = std::make_shared<internal::ClientSession>(target, options);
  session->connect_at_start();
  return std::make_unique<internal::SessionClient>(std::move(session));
}

}  // namespace tutti
