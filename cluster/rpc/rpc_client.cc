// The client as its user sees it.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_client.h"

#include <utility>

#include "tutti/cluster/rpc/client_session.h"

namespace tutti {
namespace {

using internal::ClientSession;

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

std::unique_ptr<RpcClient> RpcClient::connect(const std::string& target, RpcMethod method,
                                              const RpcClientOptions& options) {
  auto session = std::make_shared<ClientSession>(target, method, options);
  session->connect_at_start();
  return std::make_unique<SessionClient>(std::move(session));
}

}  // namespace tutti
