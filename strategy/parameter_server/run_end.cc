// What each verdict means to a task of a job with parameter servers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/run_end.h"

#include <algorithm>

namespace tutti::internal {
namespace {

bool is_same_process(const Member& a, const Member& b) {
  return a.task.same_task(b.task) && a.pid == b.pid && a.incarnation == b.incarnation;
}

}  // namespace

void RunVerdicts::take(const Verdict& verdict) {
  if (verdict.number == 0) return end(concat(verdict.message, "; nobody watches over the job"));
  const bool is_self = is_same_process(verdict.who, self_);
  const bool is_loss = verdict.kind == VerdictKind::kDead || verdict.kind == VerdictKind::kStopped;
  if (is_self && verdict.kind == VerdictKind::kJoined) is_present_ = true;
  if (is_self && is_loss) end(concat("the job gave this process up: ", verdict.message));
  if (!rules_.has_coordinator) return take_of_peer(verdict);
  if (verdict.who.task.job == "chief") take_of_chief(verdict);
}

void RunVerdicts::take_of_chief(const Verdict& verdict) {
  switch (verdict.kind) {
    case VerdictKind::kJoined:
      chief_is_here_ = true;
      return;
    case VerdictKind::kLeft:
      chief_is_here_ = false;
      if (is_present_ && !end_) end_ = RunEnd{};
      return;
    case VerdictKind::kDead:
    case VerdictKind::kStopped:
    case VerdictKind::kFailed:
      chief_is_here_ = false;
      end(concat("the coordinator is lost: ", verdict.message));
      return;
    case VerdictKind::kStuck:
    case VerdictKind::kDisconnected:
      return;
  }
}

void RunVerdicts::take_of_peer(const Verdict& verdict) {
  const MemberTask& task = verdict.who.task;
  Peer& peer = peers_[{task.job, task.index}];
  if (verdict.kind == VerdictKind::kJoined) {
    peer = {Peer::State::kHere, verdict.who, verdict.number};
    return;
  }
  if (!is_same_process(peer.process, verdict.who)) return;
  if (verdict.kind == VerdictKind::kLeft) {
    peer.state = Peer::State::kLeft;
  } else if (verdict.loses_member()) {
    peer.state = Peer::State::kLost;
    if (peer.joined > last_loss_ && is_run_lost(task.job)) {
      last_loss_ = verdict.number;
      end(verdict.message);
    }
  }
  end_if_workers_are_done();
}

bool RunVerdicts::is_run_lost(const std::string& job) const {
  if (job == "ps") return true;
  return job == "worker" &&
         rules_.num_workers - count_workers(Peer::State::kLost) < rules_.workers_needed;
}

int RunVerdicts::count_workers(Peer::State state) const {
  return static_cast<int>(std::ranges::count_if(peers_, [&](const auto& each) {
    return each.first.first == "worker" && each.second.state == state;
  }));
}

void RunVerdicts::end_if_workers_are_done() {
  const int num_left = count_workers(Peer::State::kLeft);
  const int num_lost = count_workers(Peer::State::kLost);
  if (num_left + (rules_.workers_come_back ? 0 : num_lost) < rules_.num_workers) return;
  if (num_left == 0) return end("every worker is lost");
  if (is_present_ && !end_) end_ = RunEnd{};
}

bool RunVerdicts::has_work() const {
  return rules_.has_coordinator ? chief_is_here_ : count_workers(Peer::State::kHere) > 0;
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

}  // namespace tutti::internal
