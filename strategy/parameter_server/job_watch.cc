// Implements RunVerdicts and JobWatch: the effects of verdicts, the wait for the end of the run,
// and callbacks for lost tasks.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/job_watch.h"

#include <algorithm>
#include <utility>

#include "cluster/control/member.h"
#include "core/names.h"
#include "core/process_probe.h"
#include "strategy/parameter_server/session/rpc_options.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

/// Returns the tasks of the cluster. The chief is first, because it hosts the control server if no
/// launcher does.
std::vector<MemberTask> tasks_of(const ClusterSpec& cluster) {
  std::vector<MemberTask> tasks;
  for (const char* const job : {"chief", "worker", "ps"}) {
    if (!cluster.has_job(job)) continue;
    for (const int index : cluster.task_indices(job)) {
      tasks.push_back({job, index, cluster.task_address(job, index)});
    }
  }
  return tasks;
}

Member member_of(const Task& self, const JoinOptions& options) {
  Member member;
  member.task = {self.type, self.index, ""};
  member.pid = this_process().pid;
  member.incarnation = options.client.incarnation;
  if (member.incarnation == 0) member.incarnation = restarts_of_task();
  return member;
}

bool is_same_process(const Member& a, const Member& b) {
  return a.task.same_task(b.task) && a.pid == b.pid && a.incarnation == b.incarnation;
}

}  // namespace

void RunVerdicts::take(const Verdict& verdict) {
  if (verdict.number == 0) return end(concat(verdict.message, "; the job is not watched any more"));
  const MemberTask& task = verdict.who.task;
  const bool is_self = is_same_process(verdict.who, self_);
  const bool is_loss = verdict.kind == VerdictKind::kDead || verdict.kind == VerdictKind::kStopped;
  if (is_self && verdict.kind == VerdictKind::kJoined) is_present_ = true;
  if (is_self && is_loss) end(concat("the job declared this process lost: ", verdict.message));
  Peer& peer = peers_[{task.job, task.index}];
  if (verdict.kind == VerdictKind::kJoined) {
    peer = {Peer::State::kHere, verdict.who, verdict.number};
    return;
  }
  if (!is_same_process(peer.process, verdict.who)) return;
  if (verdict.kind == VerdictKind::kLeft) {
    peer.state = Peer::State::kLeft;
    if (rules_.has_coordinator && task.job == "chief") end_well();
  } else if (verdict.loses_member()) {
    peer.state = Peer::State::kLost;
    if (peer.joined > last_loss_ && is_run_lost(task.job)) {
      last_loss_ = verdict.number;
      end(rules_.has_coordinator ? concat("the coordinator is lost: ", verdict.message)
                                 : verdict.message);
    }
  }
  if (!rules_.has_coordinator) end_if_workers_are_done();
}

bool RunVerdicts::is_run_lost(const std::string& job) const {
  if (rules_.has_coordinator) return job == "chief";
  if (job == "ps") return true;
  return job == "worker" &&
         rules_.num_workers - count("worker", Peer::State::kLost) < rules_.workers_needed;
}

int RunVerdicts::count(const std::string& job, Peer::State state) const {
  return static_cast<int>(std::ranges::count_if(peers_, [&](const auto& each) {
    return each.first.first == job && each.second.state == state;
  }));
}

void RunVerdicts::end_if_workers_are_done() {
  const int num_left = count("worker", Peer::State::kLeft);
  const int num_lost = count("worker", Peer::State::kLost);
  if (num_left + (rules_.workers_come_back ? 0 : num_lost) < rules_.num_workers) return;
  if (num_left == 0) return end("every worker is lost");
  end_well();
}

bool RunVerdicts::has_work() const {
  return count(rules_.has_coordinator ? "chief" : "worker", Peer::State::kHere) > 0;
}

std::vector<std::string> RunVerdicts::awaited_servers() const {
  std::vector<std::string> names;
  for (const auto& [task, peer] : peers_) {
    const bool is_of_this_run = peer.state == Peer::State::kHere && peer.joined > last_loss_;
    if (task.first == "ps" && !is_of_this_run) names.push_back(peer.process.task.to_string());
  }
  return names;
}

void RunVerdicts::end(const std::string& why) {
  if (is_present_ && !end_) end_ = RunEnd{1, why};
}

void RunVerdicts::end_well() {
  if (is_present_ && !end_) end_ = RunEnd{};
}

JobWatch::JobWatch(const Task& self, const WorkerGroupOptions& options, RunRules rules)
    : who_(self.to_string()),
      has_coordinator_(rules.has_coordinator),
      verdicts_(member_of(self, options.join), rules) {}

JobWatch::JobWatch(const ClusterSpec& cluster, const Task& self, const WorkerGroupOptions& options,
                   RunRules rules)
    : JobWatch(self, options, rules) {
  const std::vector<MemberTask> tasks = tasks_of(cluster);
  const auto own = std::ranges::find_if(tasks, [&](const MemberTask& task) {
    return task.job == self.type && task.index == self.index;
  });
  JoinOptions join = options.join;
  join.client.timeout = std::min(join.client.timeout, options.join_timeout);
  join.client.on_verdict = [this](const Verdict& verdict) { (void)evaluate(verdict); };
  plane_ = join_job(tasks, static_cast<std::size_t>(own - tasks.begin()), join);
}

JobWatch::~JobWatch() = default;

std::shared_ptr<void> JobWatch::when_lost(const Task& task, Lost lost) {
  MutexLock lock(told_mutex_);
  lost_[task] = std::move(lost);
  return {this, [this, task](void*) {
            MutexLock own(told_mutex_);
            lost_.erase(task);
          }};
}

std::shared_ptr<void> JobWatch::when_over(std::function<void(const std::string&)> over) {
  MutexLock lock(told_mutex_);
  over_ = std::move(over);
  return {this, [this](void*) {
            MutexLock own(told_mutex_);
            over_ = nullptr;
          }};
}

bool JobWatch::evaluate(const Verdict& verdict) {
  bool is_news = false, has_ended = false;
  std::optional<RunEnd> end;
  {
    MutexLock lock(mutex_);
    const bool had_ended = verdicts_.end().has_value();
    verdicts_.take(verdict);
    is_news = verdicts_.is_present();
    end = verdicts_.end();
    has_ended = end.has_value() && !had_ended;
    changed_.notify_all();
  }
  if (is_news) notify(verdict, end);
  return has_ended;
}

void JobWatch::notify(const Verdict& verdict, const std::optional<RunEnd>& end) {
  MutexLock lock(told_mutex_);
  if (end && over_) std::exchange(over_, nullptr)(end->text);
  const bool is_gone = verdict.loses_member() || verdict.kind == VerdictKind::kLeft;
  if (!is_gone) return;
  const auto found = lost_.find({verdict.who.task.job, verdict.who.task.index});
  if (found == lost_.end()) return;
  found->second(verdict.who.incarnation, Error(ErrorCode::kUnavailable, verdict.message));
}

RunEnd JobWatch::wait_for_end(Duration patience) {
  Clock& clock = Clock::system();
  const std::string awaited = has_coordinator_ ? "the chief" : "a worker";
  TimePoint here_at = clock.now(), say_at = deadline_after(here_at, durations::kSayAgainEvery);
  MutexLock lock(mutex_);
  const auto is_over = [this]() TUTTI_REQUIRES(mutex_) { return verdicts_.end().has_value(); };
  while (!changed_.wait_until(mutex_, say_at, is_over)) {
    const TimePoint now = clock.now();
    say_at = deadline_after(now, durations::kSayAgainEvery);
    if (verdicts_.has_work()) {
      here_at = now;
    } else if (now - here_at >= patience) {
      return {1, concat(awaited, " did not join within ", seconds_text(now - here_at),
                        " s; start it, or check its log")};
    } else {
      log_warning(concat(who_, ": has waited ", seconds_text(now - here_at), " s for ", awaited));
    }
  }
  return *verdicts_.end();
}

void JobWatch::wait_for_servers(Duration patience) {
  const TimePoint begin = Clock::system().now(), deadline = deadline_after(begin, patience);
  TimePoint say_at = deadline_after(begin, durations::kSayAgainEvery);
  MutexLock lock(mutex_);
  // Verdicts that arrive before this task has joined are outdated.
  const auto is_over = [this]() TUTTI_REQUIRES(mutex_) {
    return verdicts_.end().has_value() ||
           (verdicts_.is_present() && verdicts_.awaited_servers().empty());
  };
  while (!changed_.wait_until(mutex_, std::min(say_at, deadline), is_over)) {
    const TimePoint now = Clock::system().now();
    const std::string what = concat(seconds_text(now - begin), " s for a restart of ",
                                    join(verdicts_.awaited_servers()));
    if (now >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, who_, ": waited ", what, "; start it, or check its log");
    }
    log_warning(concat(who_, ": has waited ", what));
    say_at = deadline_after(now, durations::kSayAgainEvery);
  }
  if (const auto& end = verdicts_.end()) fail(ErrorCode::kUnavailable, who_, ": ", end->text);
}

void JobWatch::leave() {
  if (plane_.client) plane_.client->leave();
}

}  // namespace tutti::internal
