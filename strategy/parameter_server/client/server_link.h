// One server as this process uses it: the way to it; changes are gathered, reads send them first.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/rpc/rpc_client.h"
#include "strategy/parameter_server/protocol/variable_service.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"

namespace tutti::internal {

/// A parameter server in another process: batches as calls. Tensors of a batch are sent from where
/// they are stored; they are kept until the answer is there. A connection that breaks is opened
/// again, and batches without an answer are sent again in their order, which changes nothing twice
/// (AppliedTable). What cannot be sent is thrown by wait(). Only one thread may wait for the
/// answers to a batch. Thread-safe.
class RemoteService final : public VariableService {
 public:
  struct Options {
    std::string target = {};  // "grpc://host:port"
    RpcClientOptions client = {};
    /// How long a server may be away before its calls end with an error.
    Duration patience = durations::kSilentAfter;
    /// If true, calls wait for a server that was restarted; else its restart ends them with
    /// kAborted.
    bool outlives_restarts = false;
  };
  /// Connects. Throws as RpcClient::connect().
  explicit RemoteService(Options options);
  ~RemoteService() override;

  std::string name() const override;
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override;
  /// Ends all calls, under way and later, with this error.
  void fail_all(const Error& error);

 private:
  std::shared_ptr<RpcClient> client() const;
  std::shared_ptr<RpcClient> end(const Error& error);
  void run();
  bool replace(const std::shared_ptr<RpcClient>& broken);

  const Options options_;
  const std::shared_ptr<Interruption> interruption_ = std::make_shared<Interruption>();
  mutable Mutex mutex_;  // held while calls are handed over, so that they keep their order
  std::shared_ptr<RpcClient> client_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);
  std::unique_ptr<Thread> thread_;  // opens connections again
};

/// In whose name a thread changes values.
struct UpdateOrigin {
  UpdateStream stream = {};
  /// Of the closure: an earlier attempt may still run in this process, and counts for itself.
  int attempt = 0;
  std::uint64_t finished_below = 0;
  std::uint64_t run = 0;

  /// Whether both are of one client, or of one attempt at a closure, on whatever replica.
  bool is_with(const UpdateOrigin& other) const {
    return stream.kind == other.stream.kind && stream.id == other.stream.id &&
           attempt == other.attempt;
  }
};

/// Of a closure that this thread runs; else of the client `client`, where each replica of a running
/// step counts for itself.
UpdateOrigin current_update_origin(std::uint64_t client);

/// A server applies what one process sends in order. So whatever a thread changed before it let
/// another one read (by a meeting, say) is seen by that one: a read sends all that was gathered,
/// of every thread. Threads: any.
class ServerLink {
 public:
  /// `client`: this process's random number.
  ServerLink(std::shared_ptr<VariableService> service, std::uint64_t client);

  /// Notes a change in the name of the calling thread. It is sent with the next read of anybody, by
  /// send_changes(), or when many were gathered.
  void change(Operation operation);
  void send_changes();
  /// Sends all changes, then these reads. `answer_bytes`: how long the answer to each may be, or
  /// nothing; long answers come in several messages, so that one is made while another is on its
  /// way.
  std::shared_ptr<PendingAnswers> read(std::vector<Operation> reads,
                                       std::span<const std::size_t> answer_bytes = {});
  /// Waits until the server has applied all changes of this client, or of the closure that the
  /// calling thread works on. Throws what the first of them that failed was answered; those after
  /// it were sent, too.
  void settle(TimePoint deadline);
  /// No more changes come in this name; what was gathered is dropped.
  void end_stream();
  /// The server has another state: changes of this process that are no closure's are counted anew,
  /// under this number. What was gathered of them is dropped.
  void begin_anew(std::uint64_t client);

 private:
  struct Message {
    std::shared_ptr<PendingAnswers> answers = {};
    std::uint64_t first_ordinal = 0;
  };
  /// The changes in one name.
  struct Lane {
    UpdateOrigin origin = {};
    std::uint64_t next_ordinal = 0;
    std::vector<Operation> gathered = {};
    std::size_t num_sent_last = 0;  // as many come again
    std::size_t gathered_bytes = 0;
    std::deque<Message> under_way = {};
  };
  Lane& lane_of_thread() TUTTI_REQUIRES(mutex_);
  void send(Lane& lane) TUTTI_REQUIRES(mutex_);
  static OperationBatch batch_of(const Lane& lane);
  static void wait_for_last(const std::deque<Message>& messages, TimePoint deadline);
  void go_back(const std::pair<UpdateStream, int>& key, std::uint64_t ordinal);

  const std::shared_ptr<VariableService> service_;
  Mutex mutex_;  // held while batches are handed over, so that their order is that of the calls
  std::uint64_t client_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::pair<UpdateStream, int>, Lane> lanes_ TUTTI_GUARDED_BY(mutex_);  // with attempt
};

/// Whether the server or the way to it failed, and not what was asked.
inline bool is_of_infrastructure(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded ||
         code == ErrorCode::kDataLoss;
}

/// Calls `wait`; failures of servers say so.
template <class Wait>
auto from_server(const Wait& wait) {
  try {
    return wait();
  } catch (const Error& error) {
    if (!is_of_infrastructure(error.code())) throw;
    throw OriginError(ErrorOrigin::kServer, error.code(), error.message());
  }
}

}  // namespace tutti::internal
