// The chief's way to order one server process around, whichever life of it is there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "strategy/parameter_server/coordinator/task_link.h"
#include "strategy/parameter_server/server/server_order.h"
#include "tutti/cluster/net/job_durations.h"

namespace tutti::internal {

struct RemoteServerOptions {
  TaskLinkOptions link = {};
  /// Of this process, random (orders::Meet).
  std::uint64_t run = 0;
  /// How often it is asked whether it is there. One that was started again is found out earlier
  /// where a question waited for the connection to be back.
  Duration look_every = durations::kHeartbeatEvery;
};

/// Meets the server, asks it now and then, and meets the next one. Threads: any.
class RemoteServer final : public TaskLink {
 public:
  /// `changed`: as watch(), and called when a look was asked for and has ended.
  RemoteServer(RemoteServerOptions options, std::function<void()> changed);
  ~RemoteServer() override { end(); }

  /// Of the process that answers now; 0: none does.
  std::uint64_t life() const;
  /// "ps 1 (127.0.0.1:4711): ..." why none does.
  std::string why_gone() const;
  /// From now on a server that is new is not told to let the program be set up.
  void end_set_up();
  /// Its answer is decode_life(). Throws kUnavailable when this life does not answer now.
  std::shared_ptr<RpcReply> start(ServerOrder order);
  /// Asks at once whether it is there. Until has_looked() says so of this look, life() may be of
  /// a process that is gone.
  std::uint64_t begin_look();
  bool has_looked(std::uint64_t look) const;

 private:
  void greet(RpcClient& client) override;
  void work(RpcClient& client) override;
  void ended(std::shared_ptr<RpcClient> client, const Error& why) override;
  std::uint64_t next_look();
  std::uint64_t meet(RpcClient& client);

  const std::uint64_t run_;
  const Duration look_every_;
  bool sets_up_ TUTTI_GUARDED_BY(mutex_) = true;
  std::uint64_t life_ TUTTI_GUARDED_BY(mutex_) = 0;        // the last one that was met
  std::uint64_t last_look_ TUTTI_GUARDED_BY(mutex_) = 0;   // begin_look()
  std::uint64_t num_looked_ TUTTI_GUARDED_BY(mutex_) = 0;  // of these
};

}  // namespace tutti::internal
