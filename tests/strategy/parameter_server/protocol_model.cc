// What can happen in a state, and what comes of it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/protocol_model.h"

#include <algorithm>
#include <utility>

#include "tests/strategy/parameter_server/protocol_messages.h"
#include "tests/strategy/parameter_server/protocol_servers.h"

namespace tutti::testing {
namespace {

using internal::ClosureLedger;
using Await = ModelState::Await;
using Kind = ModelStep::Kind;
using Message = ModelMessage;
namespace events = internal::events;

template <class T>
void insert(std::vector<T>& sorted, const T& value) {
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), value), value);
}

}  // namespace

/// The steps out of one state.
class ProtocolModel::Successors {
 public:
  Successors(const ModelOptions& options, const ModelState& from, const Visitor& visit,
             bool with_texts)
      : options_(options), from_(from), visit_(visit), with_texts_(with_texts) {}

  bool run() {
    for (std::size_t i = 0; i < from_.network.size(); ++i) {
      // Equal messages: one of them stands for all.
      if (i == 0 || from_.network[i] != from_.network[i - 1]) message_steps(i);
    }
    for (std::size_t i = 0; i < from_.tasks.size(); ++i) task_steps(i);
    for (int s = 0; s < options_.num_servers; ++s) server_steps(s);
    for (std::size_t s = 0; s < from_.servers.size(); ++s) keep_steps(s);
    coordinator_steps();
    return has_free_step_;
  }

 private:
  bool has_fault() const { return from_.faults_left > 0; }
  const ModelServer& server(int s) const { return from_.servers[static_cast<std::size_t>(s)]; }
  Await await(int s) const { return from_.await[static_cast<std::size_t>(s)]; }
  bool is_ready() const {
    return from_.coordinator_is_up &&
           std::ranges::all_of(from_.await, [](Await a) { return a == Await::kNothing; });
  }
  enum class Cost { kFree, kFault };
  template <class Change>
  void step(Kind kind, std::size_t index, Cost cost, const std::string& text,
            const Change& change) {
    const auto& kinds = options_.kinds_of_faults;
    const bool is_allowed = kinds.empty() || std::ranges::find(kinds, kind) != kinds.end();
    if (cost == Cost::kFault && !is_allowed) return;
    ModelState next = from_;
    if (cost == Cost::kFault) --next.faults_left;
    if (cost == Cost::kFree) has_free_step_ = true;
    change(next);
    tidy(next);
    visit_(ModelStep{kind, model_byte(index), text}, std::move(next));
  }
  template <class... Parts>
  std::string say(const Parts&... parts) const {
    return with_texts_ ? concat(parts...) : std::string();
  }

  /// Takes off what could change nothing any more, whenever it came: fewer states, the same
  /// behaviours.
  void tidy(ModelState& next) const {
    std::erase_if(next.network, [&](const Message& m) { return is_void(options_, next, m); });
    if (options_.bug == PlantedBug::kOldTermAccepted) return;
    const auto is_fenced = [&](const ModelTask& task) {
      return std::ranges::all_of(next.servers,
                                 [&](const ModelServer& s) { return task.term < s.table.term(); });
    };
    std::erase_if(next.tasks, is_fenced);
  }

  void message_steps(std::size_t index) {
    const Message m = from_.network[index];
    const std::string text = with_texts_ ? to_string(m) : std::string();
    const auto take_off = [index](ModelState& next) {
      next.network.erase(next.network.begin() + static_cast<std::ptrdiff_t>(index));
    };
    if (is_deliverable(m)) {
      step(Kind::kDeliver, index, Cost::kFree, text, [&](ModelState& next) {
        take_off(next);
        deliver(next, m, true);
      });
      if (has_fault() && m.kind != Message::Kind::kDone) {
        step(Kind::kDeliverAnswerLost, index, Cost::kFault, say(text, ", the answer is lost"),
             [&](ModelState& next) {
               take_off(next);
               deliver(next, m, false);
             });
      }
    }
    if (!has_fault()) return;
    step(Kind::kDrop, index, Cost::kFault, say("LOST: ", text), take_off);
    step(Kind::kDuplicate, index, Cost::kFault, say("TWICE: ", text),
         [&](ModelState& next) { insert(next.network, m); });
  }

  bool is_deliverable(const Message& m) const {
    if (m.kind == Message::Kind::kDone) return from_.coordinator_is_up;
    return m.kind == Message::Kind::kLoad || server(m.server).is_up;
  }

  void deliver(ModelState& next, const Message& m, bool is_answered) const {
    ModelServers servers(options_, next);
    const auto is_heard = [&] {
      return is_answered && next.coordinator_is_up && next.ledger.term() == m.term;
    };
    switch (m.kind) {
      case Message::Kind::kPush:
        return hear(next, m, servers.take_push(m), is_answered);
      case Message::Kind::kDone:
        if (next.ledger.is_current(m.number, m.attempt)) {
          next.record(events::Finished{m.number, m.attempt});
        }
        return;
      case Message::Kind::kFence:
        if (servers.take_fence(m) && is_heard()) hear_of_fence(next, m);
        return;
      case Message::Kind::kLoad:
        if (servers.take_load(m) && is_heard()) hear_of_load(next, m);
        return;
      case Message::Kind::kSnapshot:
        if (servers.take_snapshot(m) && is_heard()) hear_of_snapshot(next, m);
    }
  }

  /// The worker of a push does.
  void hear(ModelState& next, const Message& push, const std::string& refusal,
            bool is_answered) const {
    if (refusal.empty()) {
      if (is_answered) confirm(next, push.server, push.number, push.attempt);
      return;
    }
    // The sender gives up; no task waits for it, unless the protocol is wrong.
    const auto is_of_it = [&](const ModelTask& task) {
      return task.number == push.number && task.attempt == push.attempt;
    };
    const bool is_wanted = std::ranges::any_of(next.tasks, is_of_it) &&
                           next.ledger.is_current(push.number, push.attempt);
    if (is_wanted && next.ledger.term() == push.term) {
      next.violation = concat("an attempt that is under way was refused: ", refusal);
    }
    std::erase_if(next.tasks, is_of_it);
  }

  void confirm(ModelState& next, int s, std::uint8_t number, std::uint8_t attempt) const {
    for (ModelTask& task : next.tasks) {
      if (task.number == number && task.attempt == attempt) task.confirmed_by |= server_bit(s);
    }
    std::ranges::sort(next.tasks);
    report_finished(next);
  }

  void keep_steps(std::size_t s) {
    const ModelServer& own = from_.servers[s];
    if (!own.is_up || own.late.empty()) return;
    const auto closure = static_cast<int>(own.late.front().number);
    step(Kind::kKeep, s, Cost::kFree,
         say("the change of closure ", closure, " on ps ", s, " is in its log"),
         [&](ModelState& next) { ModelServers(options_, next).keep_first(s); });
  }

  /// Workers report at once: waiting adds nothing, for the report may stay on its way.
  void report_finished(ModelState& next) const {
    const bool is_early = options_.bug == PlantedBug::kFinishedBeforeConfirmed;
    std::erase_if(next.tasks, [&](const ModelTask& task) {
      const bool is_done = is_early ? task.confirmed_by != 0
                                    : task.confirmed_by == all_servers(options_.num_servers);
      if (!is_done) return false;
      Message done;
      done.kind = Message::Kind::kDone;
      done.number = task.number, done.attempt = task.attempt;
      insert(next.network, done);
      return true;
    });
  }

  void hear_of_fence(ModelState& next, const Message& m) const {
    if (next.await[m.server] == Await::kFence) next.await[m.server] = Await::kNothing;
  }

  void hear_of_load(ModelState& next, const Message& m) const {
    if (next.await[m.server] == Await::kLoad) next.await[m.server] = Await::kNothing;
  }

  void hear_of_snapshot(ModelState& next, const Message& m) const {
    if (!next.takes_cut || next.ledger.last_cut_begun() != m.cut) return;
    next.saved_by |= server_bit(m.server);
    if (next.saved_by != all_servers(options_.num_servers)) return;
    next.takes_cut = false;
    next.saved_by = 0;
    next.record(events::CutTaken{m.cut});
  }

  void task_steps(std::size_t index) {
    const ModelTask task = from_.tasks[index];
    const auto closure = static_cast<int>(task.number);
    for (int s = 0; s < options_.num_servers; ++s) {
      if ((task.confirmed_by & server_bit(s)) != 0 || is_on_its_way(task, s)) continue;
      step(Kind::kResend, index * from_.servers.size() + static_cast<std::size_t>(s), Cost::kFree,
           say("closure ", closure, " sends to ps ", s, " again"),
           [&](ModelState& next) { insert(next.network, push_message(next, task, s)); });
    }
    if (!has_fault()) return;
    step(Kind::kKillTask, index, Cost::kFault, say("KILLED: the worker of closure ", closure),
         [&](ModelState& next) {
           next.tasks.erase(next.tasks.begin() + static_cast<std::ptrdiff_t>(index));
         });
    if (from_.coordinator_is_up && from_.ledger.is_current(task.number, task.attempt)) {
      step(Kind::kSuspect, index, Cost::kFault,
           say("TAKEN FOR DEAD: the worker of closure ", closure),
           [&](ModelState& next) { put_back(next, task.number, task.attempt); });
    }
  }

  bool is_on_its_way(const ModelTask& task, int s) const {
    return std::ranges::any_of(from_.network, [&](const Message& m) {
      return m.kind == Message::Kind::kPush && m.number == task.number &&
             m.attempt == task.attempt && m.server == s;
    });
  }

  void put_back(ModelState& next, std::uint64_t number, int attempt) const {
    if (options_.bug == PlantedBug::kRetryTakesNewNumber) {
      const std::string content = next.ledger.find(number)->content;
      next.record(events::Stopped{number, attempt});
      next.record(events::Scheduled{next.ledger.next_number(), content});
      return;
    }
    next.record(events::PutBack{number, attempt, {}});
  }

  void kill_steps(int s) {
    const bool is_on_its_way = await(s) == Await::kLoad;
    if (!has_fault() || !(server(s).is_up || is_on_its_way)) return;
    const auto index = static_cast<std::size_t>(s);
    step(Kind::kKillServer, index, Cost::kFault,
         say("KILLED: ps ", s, is_on_its_way ? ", on its way back" : ""), [&](ModelState& next) {
           // Control calls are addressed to a process, and end with it; pushes are sent again.
           std::erase_if(next.network, [s](const Message& m) {
             const bool is_control =
                 m.kind != Message::Kind::kPush && m.kind != Message::Kind::kDone;
             return m.server == s && is_control;
           });
           ModelServers(options_, next).kill(index);
           // An order that failed: the coordinator looks who is there.
           if (is_on_its_way) next.await[index] = Await::kFence;
         });
  }

  void server_steps(int s) {
    const auto index = static_cast<std::size_t>(s);
    kill_steps(s);
    if (!from_.coordinator_is_up) return;
    if (!server(s).is_up && await(s) != Await::kLoad) {
      step(Kind::kNoticeServer, index, Cost::kFree,
           say("the coordinator notices that ps ", s, " is gone: it comes back"),
           [&](ModelState& next) {
             bring_back(next);
             for (int each = 0; each < options_.num_servers; ++each) send_control(next, each);
           });
    }
    if (!is_control_on_its_way(s) && (await(s) != Await::kNothing || lacks_snapshot(s))) {
      step(Kind::kResend, 100 + index, Cost::kFree, say("the coordinator asks ps ", s, " again"),
           [&](ModelState& next) { send_control(next, s); });
    }
  }

  void bring_back(ModelState& next) const {
    next.takes_cut = false;
    next.saved_by = 0;
    next.record(events::TookOver{next.ledger.term() + 1});
    for (std::size_t s = 0; s < from_.servers.size(); ++s) {
      next.await[s] = next.servers[s].is_up ? Await::kFence : Await::kLoad;
    }
  }

  bool lacks_snapshot(int s) const {
    return from_.takes_cut && (from_.saved_by & server_bit(s)) == 0 && server(s).is_up;
  }

  bool is_control_on_its_way(int s) const {
    return std::ranges::any_of(from_.network,
                               [&](const Message& m) { return m == control_message(from_, s); });
  }

  void send_control(ModelState& next, int s) const {
    insert(next.network, control_message(next, s));
  }

  void coordinator_steps() {
    if (!from_.coordinator_is_up) {
      step(Kind::kRestartCoordinator, 0, Cost::kFree, say("a new coordinator reads the journal"),
           [&](ModelState& next) { restart_coordinator(next); });
      return;
    }
    if (has_fault()) {
      step(Kind::kKillCoordinator, 0, Cost::kFault, say("KILLED: the coordinator"),
           [](ModelState& next) {
             next.coordinator_is_up = false;
             next.takes_cut = false;
             next.saved_by = 0;
             std::ranges::fill(next.await, Await::kFence);
           });
    }
    notice_lost_tasks();
    if (!is_ready()) return;
    if (from_.cuts_left > 0 && !from_.takes_cut) {
      step(Kind::kBeginCut, 0, Cost::kFree, say("a cut begins"), [&](ModelState& next) {
        --next.cuts_left;
        next.record(events::CutBegan{next.ledger.last_cut_begun() + 1});
        next.takes_cut = true;
        for (int s = 0; s < options_.num_servers; ++s) send_control(next, s);
      });
    }
    if (!from_.ledger.next_queued()) return;
    if (std::cmp_greater_equal(from_.ledger.num_running(), options_.num_workers)) return;
    const std::uint64_t number = *from_.ledger.next_queued();
    step(Kind::kDispatch, 0, Cost::kFree, say("closure ", number, " is given out"),
         [&](ModelState& next) { dispatch(next, number, 1); });
    if (!has_fault()) return;
    step(Kind::kDispatchTwice, 0, Cost::kFault, say("TWICE: closure ", number, " is given out"),
         [&](ModelState& next) { dispatch(next, number, 2); });
  }

  void restart_coordinator(ModelState& next) const {
    const ClosureLedger replayed = ClosureLedger::replay(next.journal, {100, 100});
    if (replayed != next.ledger) next.violation = "the journal leads to another state";
    next.coordinator_is_up = true;
    next.record(events::TookOver{next.ledger.term() + 1});
    for (int s = 0; s < options_.num_servers; ++s) send_control(next, s);
  }

  void dispatch(ModelState& next, std::uint64_t number, int copies) const {
    const auto* closure = next.ledger.find(number);
    ModelTask task;
    task.number = model_byte(number);
    task.attempt = model_byte(static_cast<std::uint64_t>(closure->attempts) + 1);
    task.content = static_cast<std::uint8_t>(closure->content.at(0));
    task.term = model_byte(next.ledger.term());
    next.record(events::Started{number, task.attempt, 0});
    for (; copies > 0; --copies) {
      insert(next.tasks, task);
      for (int s = 0; s < options_.num_servers; ++s)
        insert(next.network, push_message(next, task, s));
    }
  }

  /// An attempt that nobody works on and that no report comes of.
  void notice_lost_tasks() {
    for (std::uint64_t n = 0; n < from_.ledger.next_number(); ++n) {
      const auto* closure = from_.ledger.find(n);
      if (closure == nullptr || closure->state != ClosureLedger::State::kRunning) continue;
      const int attempt = closure->attempts;
      const bool is_worked_on = std::ranges::any_of(from_.tasks, [&](const ModelTask& task) {
        return task.number == n && task.attempt == attempt;
      });
      const bool is_reported = std::ranges::any_of(from_.network, [&](const Message& m) {
        return m.kind == Message::Kind::kDone && m.number == n && m.attempt == attempt;
      });
      if (is_worked_on || is_reported) continue;
      step(Kind::kNoticeLost, n, Cost::kFree,
           say("the coordinator notices that closure ", n, " is lost, and puts it back"),
           [&](ModelState& next) { put_back(next, n, attempt); });
    }
  }

  const ModelOptions& options_;
  const ModelState& from_;
  const Visitor& visit_;
  const bool with_texts_;
  bool has_free_step_ = false;
};

bool ProtocolModel::each_successor(const ModelState& state, const Visitor& visit,
                                   bool with_texts) const {
  return Successors(options_, state, visit, with_texts).run();
}

}  // namespace tutti::testing
