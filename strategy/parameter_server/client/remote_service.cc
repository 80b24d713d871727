// A parameter server in another process: a call per batch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/remote_service.h"

#include <optional>
#include <utility>

namespace tutti::internal {
namespace {

class RemoteAnswers final : public PendingAnswers {
 public:
  RemoteAnswers(std::shared_ptr<RpcClient> client, const OperationBatch& batch)
      : client_(std::move(client)), num_operations_(batch.operations.size()) {
    try {
      reply_ = client_->start(encode(batch));
    } catch (const Error& error) {
      never_sent_ = error.with_context(client_->server_name());
    }
  }

  bool is_ready() const override { return never_sent_ || reply_->is_ready(); }

  std::vector<OperationAnswer> wait(TimePoint deadline) override {
    if (never_sent_) throw *never_sent_;
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
  std::shared_ptr<RpcReply> reply_;
  std::optional<Error> never_sent_;
  const std::size_t num_operations_;
  std::optional<std::vector<OperationAnswer>> answers_;
};

}  // namespace

std::shared_ptr<PendingAnswers> RemoteService::start(OperationBatch batch) {
  return std::make_shared<RemoteAnswers>(client_, batch);
}

}  // namespace tutti::internal
