// What can happen in a state, and what comes of it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/protocol_model.h"

#include <algorithm>
#include <utility>

namespace tutti::testing {
namespace {

using internal::AppliedTable;
using internal::ClosureLedger;
using Await = ModelState::Await;
using Kind = ModelStep::Kind;
using Message = ModelMessage;
namespace events = internal::events;

constexpr std::uint8_t kAllServers = (1 << kModelServers) - 1;

std::uint8_t bit(int server) { return static_cast<std::uint8_t>(1 << server); }
template <class T>
void insert(std::vector<T>& sorted, const T& value) {
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), value), value);
}

/// Write-ahead: the journal has the event before anybody hears of it.
void record(ModelState& state, const internal::ClosureEvent& event) {
  state.ledger.apply(event);
  const auto bytes = internal::encode_record(event);
  state.journal.insert(state.journal.end(), bytes.begin(), bytes.end());
}

internal::ChangeIdentity identity_of(const Message& push) {
  return {push.term, {internal::UpdateStream::Kind::kClosure, push.number, 0}, 0, 1, push.below};
}

void fence(AppliedTable& table, std::uint64_t term) {
  internal::ChangeIdentity nothing;
  nothing.term = term;
  table.note_applied(nothing);
}

}  // namespace

ModelState ProtocolModel::initial() const {
  ModelState state;
  // No verdict on closures: here it is chance alone that ends attempts.
  state.ledger = ClosureLedger({100, 100, true});
  state.faults_left = model_byte(static_cast<std::uint64_t>(options_.num_faults));
  state.cuts_left = model_byte(static_cast<std::uint64_t>(options_.num_cuts));
  state.await.fill(Await::kNothing);
  record(state, events::TookOver{1});
  for (ModelServer& server : state.servers) {
    fence(server.table, 1);
    server.restored_term = 1;
    server.saved = {{0, server.table, server.counts}};  // cut 0: the beginning
  }
  if (options_.durability == Durability::kReplicated) {
    for (ModelServer& server : state.servers) {
      server.has_copy = true;
      server.copy = {server.table, server.counts};
    }
    state.copied = kAllServers;
  }
  for (int i = 0; i < options_.num_closures; ++i) {
    record(state,
           events::Scheduled{static_cast<std::uint64_t>(i), std::string(1, static_cast<char>(i))});
  }
  return state;
}

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
    for (int server = 0; server < kModelServers; ++server) server_steps(server);
    for (std::size_t server = 0; server < kModelServers; ++server) keep_steps(server);
    coordinator_steps();
    return has_free_step_;
  }

 private:
  bool has_fault() const { return from_.faults_left > 0; }
  const ModelServer& server(int s) const { return from_.servers[static_cast<std::size_t>(s)]; }
  Await await(int s) const { return from_.await[static_cast<std::size_t>(s)]; }
  bool is_replicated() const { return options_.durability == Durability::kReplicated; }
  bool is_logged() const { return options_.durability == Durability::kLogged; }
  static std::size_t other(std::size_t s) { return s ^ 1; }
  bool is_ready() const {
    return from_.coordinator_is_up &&
           std::ranges::all_of(from_.await, [](Await a) { return a == Await::kNothing; });
  }
  std::uint8_t published(const ModelState& state) const {
    return model_byte(options_.bug == PlantedBug::kWatermarkMovesDuringCut
                          ? state.ledger.finished_below()
                          : state.ledger.published_below());
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
    std::erase_if(next.network, [&](const Message& m) { return is_void(next, m); });
    if (options_.bug == PlantedBug::kOldTermAccepted) return;
    const auto is_fenced = [&](const ModelTask& task) {
      return std::ranges::all_of(next.servers,
                                 [&](const ModelServer& s) { return task.term < s.table.term(); });
    };
    std::erase_if(next.tasks, is_fenced);
  }

  bool is_void(const ModelState& next, const Message& m) const {
    const ModelServer& server = next.servers[m.server];
    const bool is_of_present = m.term == next.ledger.term();
    switch (m.kind) {
      case Message::Kind::kDone:
        return !next.ledger.is_current(m.number, m.attempt);
      case Message::Kind::kPush:
        return server.is_up && is_void_push(next, server, m);
      case Message::Kind::kFence:
        return m.term <= server.table.term() &&
               (next.await[m.server] != Await::kFence || !is_of_present);
      case Message::Kind::kRestore:
        // One thread gives these orders: there is none of an earlier term under way.
        if (options_.durability != Durability::kSnapshot && !is_of_present) return true;
        return server.is_up && m.term <= server.restored_term &&
               (next.await[m.server] != Await::kRestore || !is_of_present);
      case Message::Kind::kBeginCopy:
        return next.await[m.server] != Await::kCopy || !is_of_present;
      case Message::Kind::kSnapshot:
        if (m.term < server.table.term()) return true;
        if (options_.bug == PlantedBug::kLateSnapshotOverwrites) return false;
        return std::ranges::find(server.saved, m.cut, &ModelServer::Saved::cut) !=
                   server.saved.end() &&
               (!next.takes_cut || (next.saved_by & bit(m.server)) != 0 || !is_of_present);
    }
    return false;
  }

  bool is_void_push(const ModelState& next, const ModelServer& server, const Message& m) const {
    if (options_.bug != PlantedBug::kOldTermAccepted && m.term < server.table.term()) return true;
    const bool is_awaited = std::ranges::any_of(next.tasks, [&](const ModelTask& task) {
      return task.number == m.number && task.attempt == m.attempt;
    });
    if (is_awaited || m.term > server.table.term()) return false;
    if (m.number < server.table.finished_below()) return true;
    internal::ChangeIdentity identity = identity_of(m);
    identity.term = 0;
    return m.below <= server.table.finished_below() &&
           server.table.num_applied_before(identity) == 1;
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
    const ModelServer& keeper = from_.servers[other(m.server)];
    if (m.kind == Message::Kind::kBeginCopy) return server(m.server).is_up && keeper.is_up;
    if (m.kind != Message::Kind::kRestore) return server(m.server).is_up;
    return !is_from_copy(m) || (keeper.is_up && keeper.has_copy);
  }

  /// A restore of a term in which nothing was undone.
  bool keeps_confirmed(const Message& m) const { return m.term != from_.ledger.rollback_term(); }
  bool is_from_copy(const Message& m) const {
    return is_replicated() && m.kind == Message::Kind::kRestore && keeps_confirmed(m) &&
           m.term == from_.ledger.term() && !server(m.server).is_up;
  }

  void deliver(ModelState& next, const Message& m, bool is_answered) const {
    switch (m.kind) {
      case Message::Kind::kPush:
        return deliver_push(next, m, is_answered);
      case Message::Kind::kDone:
        if (next.ledger.is_current(m.number, m.attempt)) {
          record(next, events::Finished{m.number, m.attempt, ""});
        }
        return;
      case Message::Kind::kFence:
        return deliver_fence(next, m, is_answered);
      case Message::Kind::kRestore:
        return deliver_restore(next, m, is_answered);
      case Message::Kind::kSnapshot:
        return deliver_snapshot(next, m, is_answered);
      case Message::Kind::kBeginCopy:
        return deliver_begin_copy(next, m, is_answered);
    }
  }

  void deliver_push(ModelState& next, const Message& m, bool is_answered) const {
    ModelServer& server = next.servers[m.server];
    internal::ChangeIdentity identity = identity_of(m);
    if (options_.bug == PlantedBug::kOldTermAccepted) identity.term = 0;
    const auto is_of_it = [&](const ModelTask& task) {
      return task.number == m.number && task.attempt == m.attempt;
    };
    bool is_new = false;
    try {
      is_new = server.table.num_applied_before(identity) == 0;
      if (is_new) ++server.counts[m.content];
      server.table.note_applied(identity);
    } catch (const Error& error) {
      // Whoever sent it gives up; nobody waits for it, unless the protocol is wrong.
      const bool is_wanted = std::ranges::any_of(next.tasks, is_of_it) &&
                             next.ledger.is_current(m.number, m.attempt) &&
                             next.servers[m.server].restored_term >= next.ledger.rollback_term();
      if (is_wanted && next.ledger.term() == m.term) {
        next.violation = concat("an attempt that is under way was refused: ", error.message());
      }
      std::erase_if(next.tasks, is_of_it);
      return;
    }
    if (!keep(next, m, is_new, is_answered) || !is_answered) return;
    confirm(next, m.server, m.number, m.attempt);
  }

  void confirm(ModelState& next, int s, std::uint8_t number, std::uint8_t attempt) const {
    for (ModelTask& task : next.tasks) {
      if (task.number == number && task.attempt == attempt) task.confirmed_by |= bit(s);
    }
    std::ranges::sort(next.tasks);
    report_finished(next);
  }

  /// Also what came before, for the first may still be on its way to the copy. Returns whether it
  /// may be confirmed now.
  bool keep(ModelState& next, const Message& m, bool is_new, bool is_answered) const {
    if (options_.durability == Durability::kSnapshot) return true;
    ModelServer& server = next.servers[m.server];
    if (!is_new && options_.bug == PlantedBug::kRepeatedNotKept) return true;
    ModelChange change{m.number, m.attempt, m.content, m.term, m.below, server.saved.back().cut, 0};
    const bool is_early = options_.bug == PlantedBug::kAcknowledgeBeforeKept;
    if (is_logged() && !is_early) {
      server.log.push_back(change);
      return true;
    }
    change.is_awaited = is_answered && !is_early ? 1 : 0;
    server.sent.push_back(change);
    return is_early;
  }

  /// The first change that is on its way to where it is kept gets there.
  void keep_steps(std::size_t s) {
    const ModelServer& own = from_.servers[s];
    const ModelServer& keeper = from_.servers[other(s)];
    const bool can_be_kept = is_logged() || (keeper.is_up && keeper.has_copy);
    if (!own.is_up || own.sent.empty() || !can_be_kept) return;
    step(Kind::kKeep, s, Cost::kFree,
         say("the change of closure ", static_cast<int>(own.sent.front().number), " on ps ", s,
             " is in its ", is_logged() ? "log" : "copy"),
         [&](ModelState& next) {
           std::vector<ModelChange>& sent = next.servers[s].sent;
           const ModelChange change = sent.front();
           sent.erase(sent.begin());
           if (is_logged()) {
             next.servers[s].log.push_back(change);
           } else {
             const auto bug = options_.bug;
             next.violation = apply_again(next.servers[other(s)].copy, change, bug);
           }
           confirm_kept(next, s, change);
         });
  }

  void confirm_kept(ModelState& next, std::size_t s, const ModelChange& change) const {
    if (change.is_awaited == 0) return;
    confirm(next, static_cast<int>(s), change.number, change.attempt);
  }

  /// The copy begins with a state in which everything is that was on its way.
  void deliver_begin_copy(ModelState& next, const Message& m, bool is_answered) const {
    ModelServer& server = next.servers[m.server];
    if (m.term < server.table.term()) return;
    ModelServer& keeper = next.servers[other(m.server)];
    keeper.has_copy = true;
    keeper.copy = {server.table, server.counts};
    for (const ModelChange& change : std::exchange(server.sent, {})) {
      confirm_kept(next, m.server, change);
    }
    if (!is_heard(next, m, is_answered) || next.await[m.server] != Await::kCopy) return;
    next.await[m.server] = Await::kNothing;
    next.copied |= bit(m.server);
  }

  /// When all are back, copies are begun of those that have none.
  void begin_copies(ModelState& next) const {
    if (!is_replicated()) return;
    for (const Await each : next.await) {
      if (each == Await::kFence || each == Await::kRestore) return;
    }
    for (int s = 0; s < kModelServers; ++s) {
      Await& await = next.await[static_cast<std::size_t>(s)];
      if (await != Await::kNothing || (next.copied & bit(s)) != 0) continue;
      await = Await::kCopy;
      send_control(next, s);
    }
  }

  /// Workers report at once: waiting adds nothing, for the report may stay on its way.
  void report_finished(ModelState& next) const {
    const bool is_early = options_.bug == PlantedBug::kFinishedBeforeConfirmed;
    std::erase_if(next.tasks, [&](const ModelTask& task) {
      const bool is_done = is_early ? task.confirmed_by != 0 : task.confirmed_by == kAllServers;
      if (!is_done) return false;
      Message done;
      done.kind = Message::Kind::kDone;
      done.number = task.number, done.attempt = task.attempt;
      insert(next.network, done);
      return true;
    });
  }

  bool is_heard(const ModelState& next, const Message& m, bool is_answered) const {
    return is_answered && next.coordinator_is_up && next.ledger.term() == m.term;
  }

  void deliver_fence(ModelState& next, const Message& m, bool is_answered) const {
    ModelServer& server = next.servers[m.server];
    if (m.term < server.table.term()) return;
    fence(server.table, m.term);
    if (!is_heard(next, m, is_answered) || next.await[m.server] != Await::kFence) return;
    next.await[m.server] =
        server.restored_term < next.ledger.rollback_term() ? Await::kRestore : Await::kNothing;
    begin_copies(next);
  }

  void deliver_restore(ModelState& next, const Message& m, bool is_answered) const {
    ModelServer& server = next.servers[m.server];
    // One that comes late or again must not undo what was done since.
    const bool is_new = server.is_up ? m.term > server.restored_term : true;
    if (m.term < server.restored_term) return;
    if (is_new) {
      next.violation = take_state(next, m);
      if (!next.violation.empty()) return;
      server.is_up = true;
      server.sent.clear();  // of what is undone, or of a process that is gone
      server.restored_term = m.term;
      fence(server.table, m.term);
    }
    if (is_heard(next, m, is_answered) && next.await[m.server] == Await::kRestore) {
      next.await[m.server] = Await::kNothing;
      begin_copies(next);
    }
  }

  /// "", or why it cannot have the state that it is told to take.
  std::string take_state(ModelState& next, const Message& m) const {
    ModelServer& server = next.servers[m.server];
    if (is_logged() && keeps_confirmed(m)) return replay_log(server, m.cut, options_.bug);
    if (is_from_copy(m)) {
      const ModelServer::Variables& copy = next.servers[other(m.server)].copy;
      server.table = copy.table;
      server.counts = copy.counts;
      return "";
    }
    const auto saved = std::ranges::find(server.saved, m.cut, &ModelServer::Saved::cut);
    if (saved == server.saved.end()) return "a cut that was taken is not there";
    server.table =
        options_.bug == PlantedBug::kSnapshotWithoutTable ? AppliedTable() : saved->table;
    server.counts = saved->counts;
    return "";
  }

  void deliver_snapshot(ModelState& next, const Message& m, bool is_answered) const {
    ModelServer& server = next.servers[m.server];
    if (m.term != server.table.term()) return;
    const auto saved = std::ranges::find(server.saved, m.cut, &ModelServer::Saved::cut);
    if (saved == server.saved.end()) {
      server.saved.push_back({m.cut, server.table, server.counts});
    } else if (options_.bug == PlantedBug::kLateSnapshotOverwrites) {
      *saved = {m.cut, server.table, server.counts};
    }
    if (!is_heard(next, m, is_answered) || !next.takes_cut) return;
    if (next.ledger.last_cut_begun() != m.cut) return;
    next.saved_by |= bit(m.server);
    if (next.saved_by != kAllServers) return;
    next.takes_cut = false;
    next.saved_by = 0;
    record(next, events::CutTaken{m.cut});
  }

  Message push_of(const ModelState& next, const ModelTask& task, int server) const {
    Message push;
    push.server = model_byte(static_cast<std::uint64_t>(server));
    push.number = task.number, push.attempt = task.attempt, push.content = task.content;
    push.term = task.term;
    push.below = task.term == next.ledger.term() ? published(next) : 0;
    return push;
  }

  void task_steps(std::size_t index) {
    const ModelTask task = from_.tasks[index];
    const auto closure = static_cast<int>(task.number);
    for (int s = 0; s < kModelServers; ++s) {
      if ((task.confirmed_by & bit(s)) != 0 || is_on_its_way(task, s)) continue;
      if (is_being_kept(task, s)) continue;
      step(Kind::kResend, index * 2 + static_cast<std::size_t>(s), Cost::kFree,
           say("closure ", closure, " sends to ps ", s, " again"),
           [&](ModelState& next) { insert(next.network, push_of(next, task, s)); });
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

  bool is_being_kept(const ModelTask& task, int s) const {
    return std::ranges::any_of(server(s).sent, [&](const ModelChange& change) {
      return change.is_awaited != 0 && change.number == task.number &&
             change.attempt == task.attempt;
    });
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
      record(next, events::Stopped{number, attempt});
      record(next, events::Scheduled{next.ledger.next_number(), content});
      return;
    }
    record(next, events::PutBack{number, attempt, {}});
  }

  void server_steps(int s) {
    const auto index = static_cast<std::size_t>(s);
    if (has_fault() && server(s).is_up) {
      step(Kind::kKillServer, index, Cost::kFault, say("KILLED: ps ", s), [&](ModelState& next) {
        // Control calls are addressed to a process, and end with it; pushes are sent again.
        std::erase_if(next.network, [s](const Message& m) {
          return m.server == s && m.kind != Message::Kind::kPush && m.kind != Message::Kind::kDone;
        });
        ModelServer& dead = next.servers[index];
        ModelServer fresh;
        fresh.is_up = false;
        fresh.restored_term = dead.restored_term;  // stands beside what was saved
        fresh.saved = std::move(dead.saved);
        fresh.log = std::move(dead.log);
        dead = std::move(fresh);
      });
    }
    if (!from_.coordinator_is_up) return;
    if (!server(s).is_up && await(s) != Await::kRestore) {
      step(Kind::kNoticeServer, index, Cost::kFree,
           say("the coordinator notices that ps ", s,
               " is gone: ", can_keep_confirmed() ? "it comes back" : "all servers go back"),
           [&](ModelState& next) {
             bring_back(next);
             for (int each = 0; each < kModelServers; ++each) send_control(next, each);
           });
    }
    if (!is_control_on_its_way(s) && (await(s) != Await::kNothing || lacks_snapshot(s))) {
      step(Kind::kResend, 100 + index, Cost::kFree, say("the coordinator asks ps ", s, " again"),
           [&](ModelState& next) { send_control(next, s); });
    }
  }

  /// Whether those that are lost can have again what they confirmed.
  bool can_keep_confirmed() const {
    if (!is_replicated()) return is_logged();
    for (std::size_t s = 0; s < kModelServers; ++s) {
      const ModelServer& own = from_.servers[s];
      const ModelServer& keeper = from_.servers[other(s)];
      if (own.restored_term < from_.ledger.rollback_term()) return false;
      const bool is_copied = (from_.copied & bit(static_cast<int>(s))) != 0;
      if (!own.is_up && !(is_copied && keeper.is_up && keeper.has_copy)) return false;
    }
    return true;
  }

  void bring_back(ModelState& next) const {
    const std::uint64_t term = next.ledger.term() + 1;
    next.takes_cut = false;
    next.saved_by = 0;
    if (!can_keep_confirmed()) {
      record(next, events::RolledBack{term});
      next.await.fill(Await::kRestore);
      next.copied = 0;
      return;
    }
    record(next, events::TookOver{term});
    for (std::size_t s = 0; s < kModelServers; ++s) {
      next.await[s] = next.servers[s].is_up ? Await::kFence : Await::kRestore;
      // Neither its own copy is one of its next life, nor is there the one that it kept.
      if (!next.servers[s].is_up) next.copied = 0;
    }
  }

  bool lacks_snapshot(int s) const {
    return from_.takes_cut && (from_.saved_by & bit(s)) == 0 && server(s).is_up;
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
             next.copied = 0;
             next.takes_cut = false;
             next.saved_by = 0;
             next.await.fill(Await::kFence);
           });
    }
    notice_lost_tasks();
    if (!is_ready()) return;
    if (from_.cuts_left > 0 && !from_.takes_cut) {
      step(Kind::kBeginCut, 0, Cost::kFree, say("a cut begins"), [&](ModelState& next) {
        --next.cuts_left;
        record(next, events::CutBegan{next.ledger.last_cut_begun() + 1});
        next.takes_cut = true;
        for (int s = 0; s < kModelServers; ++s) send_control(next, s);
      });
    }
    if (!from_.ledger.next_queued() || from_.ledger.num_running() >= kModelWorkers) return;
    const std::uint64_t number = *from_.ledger.next_queued();
    step(Kind::kDispatch, 0, Cost::kFree, say("closure ", number, " is given out"),
         [&](ModelState& next) { dispatch(next, number, 1); });
    if (!has_fault()) return;
    step(Kind::kDispatchTwice, 0, Cost::kFault, say("TWICE: closure ", number, " is given out"),
         [&](ModelState& next) { dispatch(next, number, 2); });
  }

  void restart_coordinator(ModelState& next) const {
    const ClosureLedger replayed = ClosureLedger::replay(next.journal, {100, 100, true});
    if (replayed != next.ledger) next.violation = "the journal leads to another state";
    next.coordinator_is_up = true;
    record(next, events::TookOver{next.ledger.term() + 1});
    for (int s = 0; s < kModelServers; ++s) send_control(next, s);
  }

  void dispatch(ModelState& next, std::uint64_t number, int copies) const {
    const auto* closure = next.ledger.find(number);
    ModelTask task;
    task.number = model_byte(number);
    task.attempt = model_byte(static_cast<std::uint64_t>(closure->attempts) + 1);
    task.content = static_cast<std::uint8_t>(closure->content.at(0));
    task.term = model_byte(next.ledger.term());
    record(next, events::Started{number, task.attempt, 0});
    for (; copies > 0; --copies) {
      insert(next.tasks, task);
      for (int s = 0; s < kModelServers; ++s) insert(next.network, push_of(next, task, s));
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
