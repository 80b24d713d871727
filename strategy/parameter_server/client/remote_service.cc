// A parameter server in another process: a call per batch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/remote_service.h"

#include <optional>
#include <utility>

namespace tutti::internal {
namespace {

class RemoteAnswers final : public PendingAnswers {
 public:
  RemoteAnswers(std::shared_ptr<RpcClient> client, std::shared_ptr<RpcReply> reply,
                std::size_t num_operations)
      : client_(std::move(client)), reply_(std::move(reply)), num_operations_(num_operations) {}

  bool is_ready() const override { return reply_->is_ready(); }

  std::vector<OperationAnswer> wait(TimePoint deadline) override {
    if (!answers_) answers_ = decoded(reply_->wait(deadline));
    return *answers_;
  }

 private:
  std::vector<OperationAnswer> decoded(const Packet& packet) const {
    std::vector<OperationAnswer> answers;
    try {
      answers = decode_answers(packet);
    } catch (const Error& error) {
      throw error.with_context(client_->server_name());
    }
    if (answers.size() == num_operations_) return answers;
    fail(ErrorCode::kDataLoss, client_->server_name(), ": expected ", num_operations_,
         " answers, got ", answers.size());
  }

  const std::shared_ptr<RpcClient> client_;  // lives until its answers were taken
  const std::shared_ptr<RpcReply> reply_;
  const std::size_t num_operations_;
  std::optional<std::vector<OperationAnswer>> answers_;
};

/// What was never sent.
class FailedAnswers final : public PendingAnswers {
 public:
  explicit FailedAnswers(Error error) : error_(std::move(error)) {}
  bool is_ready() const override { return true; }
  std::vector<OperationAnswer> wait(TimePoint) override { throw error_; }

 private:
  const Error error_;
};

}  // namespace

std::shared_ptr<PendingAnswers> RemoteService::start(OperationBatch batch) {
  try {
    auto reply = client_->start(encode(batch));
    return std::make_shared<RemoteAnswers>(client_, std::move(reply), batch.operations.size());
  } catch (const Error& error) {
    return std::make_shared<FailedAnswers>(error.with_context(client_->server_name()));
  }
}

}  // namespace tutti::internal
