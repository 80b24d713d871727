// The chief's way to a worker or server in another process, whichever life of it is there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cluster/rpc/rpc_client.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

struct TaskLinkOptions {
  std::string name = {};  // "ps 1 (127.0.0.1:4711)"
  /// Opens a connection; called again, on the link's thread, after one was lost. What it throws is
  /// logged, now and then, and it is called again.
  std::function<std::unique_ptr<RpcClient>()> connect = {};
  /// Calls give_up() when the job finds out that the task is gone, as long as what it returns
  /// lives; empty: nobody does.
  using Lost = std::function<void(std::uint64_t incarnation, const Error& error)>;
  std::function<std::shared_ptr<void>(Lost)> when_lost = {};
};

/// A thread connects to the task, greets it, and works with it until it is lost; then it meets the
/// next one. The class that derives says what a greeting is, and what the work. Threads: any.
class TaskLink {
 public:
  TaskLink(const TaskLink&) = delete;
  TaskLink& operator=(const TaskLink&) = delete;

  const std::string& name() const { return options_.name; }
  /// `changed` is called, by the thread, when another life is there or none; it holds no locks.
  void watch(std::function<void()> changed);
  /// The job found out that the task's incarnations up to this one are gone: connects to the next.
  void give_up(std::uint64_t incarnation, const Error& error);

 protected:
  explicit TaskLink(TaskLinkOptions options) : options_(std::move(options)) {}
  virtual ~TaskLink() = default;
  /// In the constructor and in the destructor of the class that has the functions below.
  void begin(const std::string& thread);
  void end();

  // Called by the thread, without locks.

  /// Throws why this task cannot be used.
  virtual void greet(RpcClient& client) = 0;
  /// Throws why this life is over: soon, once changed_ was notified of a loss_.
  virtual void work(RpcClient& client) = 0;
  /// It is over, and client_ is none.
  virtual void ended(std::shared_ptr<RpcClient> client, const Error& why) = 0;

  bool is_stopped() const { return stop_.is_set(); }
  void tell_change();

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<RpcClient> client_ TUTTI_GUARDED_BY(mutex_);  // of a life that was greeted
  std::optional<Error> loss_ TUTTI_GUARDED_BY(mutex_);      // what ends this life, or its greeting
  std::optional<Error> why_gone_ TUTTI_GUARDED_BY(mutex_);  // the last one, or the last try

 private:
  void run();
  std::shared_ptr<RpcClient> open();
  void live(std::shared_ptr<RpcClient> client);
  void complain(const Error& error);

  const TaskLinkOptions options_;
  Event stop_;
  std::shared_ptr<RpcClient> greeted_ TUTTI_GUARDED_BY(mutex_);  // before it is client_
  std::function<void()> on_change_ TUTTI_GUARDED_BY(mutex_);
  // Of the thread.
  std::string last_complaint_;
  TimePoint complain_at_ = {};
  std::shared_ptr<void> subscription_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
