// The chief's way to order one server process around, whichever life of it is there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/rpc/rpc_client.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/server/server_order.h"

namespace tutti::internal {

struct RemoteServerOptions {
  std::string name = {};  // "ps 1 (127.0.0.1:4711)"
  /// Of this process, random (orders::Meet).
  std::uint64_t run = 0;
  /// Opens a connection; called again, on the link's thread, after one was lost. What it throws is
  /// logged, now and then, and it is called again.
  std::function<std::unique_ptr<RpcClient>()> connect = {};
  /// Calls give_up() when the job finds out that the server is gone, as long as what it returns
  /// lives; empty: nobody does.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;
  std::function<std::shared_ptr<void>(Lost)> when_lost = {};
  Duration between_tries = std::chrono::milliseconds(50);
  /// How often it is asked whether it is there.
  Duration look_every = std::chrono::milliseconds(200);
};

/// A thread meets the server, asks it now and then, and meets the next one. Threads: any.
class RemoteServer {
 public:
  /// `changed` is called, by the thread, when another life is there or none, or a look was asked
  /// for and has ended; it holds no locks.
  RemoteServer(RemoteServerOptions options, std::function<void()> changed);
  ~RemoteServer();
  RemoteServer(const RemoteServer&) = delete;
  RemoteServer& operator=(const RemoteServer&) = delete;

  const std::string& name() const { return options_.name; }
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

  /// The job found out that the server is gone, of which this was the life or a later one: meets
  /// whoever is there then.
  void give_up(std::uint64_t incarnation, const Error& error);

 private:
  void run();
  bool open();
  void begin_meeting(std::shared_ptr<RpcClient> client);
  void look_after();
  std::optional<std::uint64_t> next_look(const RpcClient& client);
  std::uint64_t meet(RpcClient& client);
  bool note_look(std::uint64_t look);
  void end_life(const Error& error);
  void complain(const Error& error);

  const RemoteServerOptions options_;
  const std::function<void()> changed_;
  Event stop_;
  mutable Mutex mutex_;
  bool sets_up_ TUTTI_GUARDED_BY(mutex_) = true;
  std::shared_ptr<RpcClient> client_ TUTTI_GUARDED_BY(mutex_);
  std::shared_ptr<RpcClient> meeting_ TUTTI_GUARDED_BY(mutex_);  // before it is client_
  std::uint64_t life_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::string why_gone_ TUTTI_GUARDED_BY(mutex_) = "was not met yet";
  CondVar look_wanted_;
  std::uint64_t last_look_ TUTTI_GUARDED_BY(mutex_) = 0;   // begin_look()
  std::uint64_t num_looked_ TUTTI_GUARDED_BY(mutex_) = 0;  // of these
  // Of the thread.
  std::string last_complaint_;
  TimePoint complain_at_ = {};
  std::shared_ptr<void> subscription_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
