// Orders to all servers at once; a life that was lost is followed by the next one.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/remote_servers.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cluster/control/member.h"
#include "core/names.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

RemoteServers::RemoteServers(std::vector<RemoteServerOptions> servers, Duration patience)
    : patience_(patience), members_(servers.size()) {
  const MutexLock lock(mutex_);  // the first link's thread looks at all of them
  for (std::size_t i = 0; i < servers.size(); ++i) {
    members_[i].link =
        std::make_unique<RemoteServer>(std::move(servers[i]), [this] { tell_change(); });
  }
}

RemoteServers::~RemoteServers() {
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }
  members_.clear();
}

void RemoteServers::tell_change() {
  {
    const MutexLock lock(mutex_);
    if (is_ending_) return;
    changed_.notify_all();
    if (are_here()) return;
  }
  const MutexLock lock(told_mutex_);
  if (on_loss_) on_loss_();
}

bool RemoteServers::are_here() const {
  return std::ranges::all_of(members_,
                             [](const Member& each) { return each.link->life() == each.life; });
}

bool RemoteServers::are_all_here() const {
  const MutexLock lock(mutex_);
  return are_here();
}

/// Those that were lost are followed by who is there now.
void RemoteServers::take_lives(TimePoint deadline, const char* who) {
  const TimePoint begin = Clock::system().now();
  TimePoint say_at = deadline_after(begin, durations::kSayAgainEvery);
  for (;;) {
    std::vector<std::string> missing;
    bool is_interrupted = false;
    {
      const MutexLock lock(mutex_);
      (void)changed_.wait_until(
          mutex_, std::min(deadline, say_at), [this]() TUTTI_REQUIRES(mutex_) {
            return is_interrupted_ || std::ranges::all_of(members_, [](const Member& each) {
                     return each.link->life() != 0;
                   });
          });
      is_interrupted = is_interrupted_;
      for (Member& each : members_) {
        each.life = each.link->life();
        if (each.life == 0) missing.push_back(each.link->why_gone());
      }
    }
    if (is_interrupted) fail(ErrorCode::kCancelled, who, ": the coordinator was stopped");
    if (missing.empty()) return;
    const TimePoint now = Clock::system().now();
    const std::string since = concat("since ", seconds_text(now - begin), " s");
    if (now >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, who, ": servers are missing ", since, ": ",
           tutti::join(missing), "; start them again, or read their logs");
    }
    log_info(concat("coordinator: waits for servers ", since, ": ", tutti::join(missing)));
    say_at = deadline_after(now, durations::kSayAgainEvery);
  }
}

void RemoteServers::wait_for_all(TimePoint deadline) { take_lives(deadline, "set-up"); }

std::uint64_t RemoteServers::await(std::shared_ptr<RpcReply> reply, const std::string& name) {
  const TimePoint end = deadline_after(Clock::system().now(), patience_);
  // It ends with its link at the latest, which this object outlives.
  reply->when_ready([this] {
    const MutexLock lock(mutex_);
    changed_.notify_all();
  });
  bool is_interrupted = false;
  {
    const MutexLock lock(mutex_);
    (void)changed_.wait_until(
        mutex_, end, [&]() TUTTI_REQUIRES(mutex_) { return is_interrupted_ || reply->is_ready(); });
    is_interrupted = is_interrupted_;
  }
  if (reply->is_ready()) return decode_life(reply->wait(TimePoint::min()));
  if (is_interrupted) fail(ErrorCode::kCancelled, name, ": the coordinator was stopped");
  fail(ErrorCode::kDeadlineExceeded, name, ": an order of the coordinator was not answered ",
       "within ", seconds_text(patience_), " s; read its log");
}

void RemoteServers::order_all(const What& what) {
  order_each([&](std::size_t) { return what; });
}

bool RemoteServers::is_new(std::size_t server) const {
  const MutexLock lock(mutex_);
  return members_[server].life != members_[server].whole_life;
}

/// The links find out by and by that a process is another one; a connection that broke knows it
/// before. A caller of lost() after a failed order has to hear what is so now.
void RemoteServers::look_at_all() {
  std::vector<std::uint64_t> looks;
  for (const Member& each : members_) looks.push_back(each.link->begin_look());
  const auto have_looked = [&] {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!members_[i].link->has_looked(looks[i])) return false;
    }
    return true;
  };
  const MutexLock lock(mutex_);
  (void)changed_.wait_for(
      mutex_, patience_, [&]() TUTTI_REQUIRES(mutex_) { return is_interrupted_ || have_looked(); });
}

/// Answers of all are waited for, also where one failed: no order is under way afterwards.
void RemoteServers::order_each(const std::function<What(std::size_t server)>& what_of,
                               const std::function<void(std::size_t server)>& obeyed) {
  std::vector<std::shared_ptr<RpcReply>> replies;
  std::optional<Error> first;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    replies.push_back(nullptr);
    std::uint64_t life = 0;
    {
      const MutexLock lock(mutex_);
      life = members_[i].life;
    }
    try {
      replies.back() = members_[i].link->start({life, what_of(i)});
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  for (std::size_t i = 0; i < replies.size(); ++i) {
    if (replies[i] == nullptr) continue;
    try {
      (void)await(replies[i], members_[i].link->name());
      const MutexLock lock(mutex_);
      if (obeyed) obeyed(i);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  if (!first) return;
  if (may_be_loss(first->code())) look_at_all();
  throw *first;
}

void RemoteServers::keep_in(const std::string& folder, const std::string& job_id) {
  {
    const MutexLock lock(mutex_);
    is_interrupted_ = false;
  }
  const bool ends_set_up = folder_.empty();
  const bool is_of_another_job = !ends_set_up && job_id != job_id_;
  if (is_of_another_job) former_folder_ = folder_;
  folder_ = std::filesystem::absolute(folder).string();
  job_id_ = job_id;
  clients_begin_anew_ |= ends_set_up || is_of_another_job;
  if (is_of_another_job) forget_job();
  for (const Member& each : members_) each.link->end_set_up();
  const TimePoint end = deadline_after(Clock::system().now(), patience_);
  for (;;) {
    if (!ends_set_up) {
      take_lives(end, "ClusterCoordinator::start");
    } else if (const auto who = lost()) {
      fail(ErrorCode::kUnavailable, "ClusterCoordinator::start: ", *who,
           "; variables were made there; expected servers to live until start(); try it again");
    }
    try {
      order_all(orders::KeepIn{folder_, job_id_});
      break;
    } catch (const Error& error) {
      const bool may_try_again = may_be_loss(error.code()) && lost();
      if (!may_try_again || Clock::system().now() >= end) throw;
    }
  }
  if (!ends_set_up) return;
  const MutexLock lock(mutex_);
  for (Member& each : members_) each.begun_life = each.life;
}

/// What servers have is what another job begins with; nobody can have it again.
void RemoteServers::forget_job() {
  const MutexLock lock(mutex_);
  for (Member& each : members_) {
    if (each.whole_life != 0) each.begun_life = each.whole_life;
    each.whole_life = 0;
  }
}

void RemoteServers::require_state() {
  const MutexLock lock(mutex_);
  const std::string before = former_folder_.empty() ? "" : concat(" '", former_folder_, "'");
  for (const Member& each : members_) {
    if (each.life == each.whole_life || each.life == each.begun_life) continue;
    fail(ErrorCode::kUnavailable, "ClusterCoordinator::start: ", each.link->name(),
         ": died, and was started again without its variables, which must not be saved as the ",
         "first of '", folder_, "'; try the folder of before", before, ", where they are");
  }
  if (!is_unfinished_) return;
  fail(ErrorCode::kUnavailable,
       "ClusterCoordinator::start: not all servers have loaded what is in the folder of before",
       before, "; expected them to have done so before the first cut in '", folder_,
       "'; try that one");
}

void RemoteServers::save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) {
  order_all(orders::SaveCut{cut, term, keep});
}

void RemoteServers::end_bringing_back() {
  const MutexLock lock(mutex_);
  is_unfinished_ = false;
  for (Member& each : members_) each.whole_life = each.life;
}

/// Clients of a server that is back go on counting: what they were told was done still is.
void RemoteServers::come_back(std::uint64_t cut, std::uint64_t term) {
  {
    const MutexLock lock(mutex_);
    is_unfinished_ = true;
  }
  take_lives(deadline_after(Clock::system().now(), patience_), "bringing servers back");
  order_all(orders::KeepIn{folder_, job_id_});
  const auto what_of = [&](std::size_t i) {
    return is_new(i) ? What(orders::Load{cut, term}) : What(orders::Fence{term});
  };
  order_each(what_of, [this](std::size_t i)
                          TUTTI_REQUIRES(mutex_) { members_[i].whole_life = members_[i].life; });
  end_bringing_back();
  if (std::exchange(clients_begin_anew_, false)) tell_loaded();
}

void RemoteServers::fence(std::uint64_t term) {
  order_all(orders::Fence{term});
  clients_begin_anew_ = false;
  end_bringing_back();
}

std::optional<std::string> RemoteServers::lost() const {
  const MutexLock lock(mutex_);
  for (const Member& each : members_) {
    const std::uint64_t life = each.link->life();
    if (life == 0) return each.link->why_gone();
    if (life != each.life) return concat(each.link->name(), ": died, and was started again");
  }
  if (is_unfinished_) return "servers: not all of them are back";
  return std::nullopt;
}

void RemoteServers::watch(std::function<void()> on_loss) {
  {
    const MutexLock lock(mutex_);
    is_interrupted_ = !on_loss;
    changed_.notify_all();
  }
  const MutexLock lock(told_mutex_);
  on_loss_ = std::move(on_loss);
}

}  // namespace tutti::internal
