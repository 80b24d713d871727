// Implements ConsistencyCheck: notes, their digests and their comparison.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/consistency_check.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <vector>

#include "core/call_site.h"
#include "core/hash.h"
#include "tutti/core/error.h"
#include "tutti/tensor/op.h"

namespace tutti::internal {
namespace {

using NoteKind = ConsistencyCheck::Kind;

/// Phrases of the error message about one kind of note.
struct Words {
  ErrorCode code;
  const char* verb;    // text between a worker and its note
  const char* before;  // text before the subject
  const char* after;   // text after the subject
  const char* expected;
};

Words words_of(NoteKind kind) {
  switch (kind) {
    case NoteKind::kGlobalBatch:
      return {ErrorCode::kInvalidArgument, "has", "the workers' ", " differ",
              "the same dataset and global batch size on all workers; call "
              "distribute_datasets_from_function() if each worker is to read its own rows"};
    case NoteKind::kFirstBatch:
      return {
          ErrorCode::kInvalidArgument, "has", "the workers' first batches of ", " differ",
          "the same dataset in the same order on all workers, because each uses its rows of every "
          "batch; use the same files and the same seed of shuffle(), or "
          "distribute_datasets_from_function() if each worker is to read its own rows"};
    case NoteKind::kOptimizer:
      return {ErrorCode::kInvalidArgument, "has", "the workers' ", " differ",
              "equal values on all workers; set them without a condition on the worker"};
    case NoteKind::kWrite:
      return {ErrorCode::kFailedPrecondition, "wrote", "Variable '",
              "' was written outside a step, but not identically on all workers",
              "the same writes on all workers, so that their copies stay equal; write without a "
              "condition on the worker"};
    case NoteKind::kValue:
      break;
  }
  return {ErrorCode::kDataLoss, "has", "the workers' values of '", "' differ",
          "the same bits on all workers; memory flipped a bit, or a step depends on the worker; "
          "use the last checkpoint on another machine"};
}

bool may_lack(NoteKind kind) { return kind == NoteKind::kOptimizer || kind == NoteKind::kValue; }

/// Returns an order-dependent hash of two numbers.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  a = (a ^ (a >> 32)) * 0xff51afd7ed558ccdu + b;
  return (a ^ (a >> 29)) * 0xc4ceb9fe1a85ec53u;
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// One worker's note about a subject.
struct Entry {
  std::string digest, shown;
};

/// Returns e.g. "worker 1 has 32, workers 0, 2 have 64", the smallest group of workers first.
std::string parties_of(const std::vector<Entry>& entries, std::string_view verb) {
  std::map<std::string, std::vector<std::size_t>> workers_of;
  for (std::size_t w = 0; w < entries.size(); ++w) workers_of[entries[w].digest].push_back(w);
  std::vector<std::vector<std::size_t>> parties;
  for (auto& [digest, workers] : workers_of) parties.push_back(std::move(workers));
  std::ranges::sort(parties, {},
                    [](const auto& party) { return std::pair(party.size(), party.front()); });
  std::vector<std::string> words;
  for (const std::vector<std::size_t>& workers : parties) {
    const std::string& shown = entries[workers.front()].shown;
    const bool is_one = workers.size() == 1;
    words.push_back(concat(is_one ? "worker " : "workers ", join(workers), " ",
                           !is_one && verb == "has" ? "have" : verb, " ", shown));
  }
  return join(words);
}

}  // namespace

std::uint64_t digest_number(std::span<const std::byte> bytes) {
  const std::string digits = hash_of(bytes);
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + 16, number, 16);
  return number;
}

void ConsistencyCheck::note(Kind kind, std::string_view subject, std::span<const std::byte> bytes,
                            std::string_view shown) {
  add(kind, subject, digest_number(bytes), std::nullopt, shown);
}

void ConsistencyCheck::note_number(Kind kind, std::string_view subject, double number,
                                   const char* unit) {
  add(kind, subject, std::bit_cast<std::uint64_t>(number), number, unit);
}

void ConsistencyCheck::add(Kind kind, std::string_view subject, std::uint64_t digest,
                           std::optional<double> number, std::string_view shown) {
  MutexLock lock(mutex_);
  Note& note = notes_[{kind, std::string(subject)}];
  note.digest = mixed(note.digest, digest);
  ++note.count;
  note.number = number;
  note.shown = shown;
  if (kind == Kind::kWrite) note.where = CallSite::current();
}

std::uint64_t ConsistencyCheck::digest() const {
  MutexLock lock(mutex_);
  std::string all;
  for (const auto& [subject, note] : notes_) {
    const std::uint64_t parts[] = {static_cast<std::uint64_t>(subject.first), note.digest};
    all.append(subject.second).append(reinterpret_cast<const char*>(parts), sizeof parts);
  }
  return all.empty() ? 0 : digest_number(std::as_bytes(std::span(all)));
}

void ConsistencyCheck::clear() {
  MutexLock lock(mutex_);
  notes_.clear();
}

Json ConsistencyCheck::notes() const {
  MutexLock lock(mutex_);
  Json all = Json::array();
  for (const auto& [subject, note] : notes_) {
    std::string shown = note.number ? concat(*note.number, note.shown) : note.shown;
    if (shown.empty()) shown = hex(note.digest);
    if (note.count > 1) shown += concat(" (the last of ", note.count, ")");
    if (note.where.line() != 0) shown += concat(" at ", to_string(note.where));
    all.push_back(Json::Array{static_cast<int>(subject.first), subject.second, hex(note.digest),
                              std::move(shown)});
  }
  return all;
}

void ConsistencyCheck::require_alike(std::span<const std::string> notes) {
  std::map<Subject, std::vector<Entry>> entries;
  for (std::size_t w = 0; w < notes.size(); ++w) {
    const Json all = Json::parse(notes[w]);
    for (const Json& each : all.as_array()) {
      const Json::Array& fields = each.as_array();
      auto& of_subject = entries[{static_cast<Kind>(fields[0].as_int()), fields[1].as_string()}];
      of_subject.resize(notes.size(), {"", "nothing"});
      of_subject[w] = {fields[2].as_string(), fields[3].as_string()};
    }
  }
  for (const auto& [subject, of_workers] : entries) {
    const auto lacks = std::ranges::count(of_workers, std::string(), &Entry::digest);
    const auto alike = std::ranges::count(of_workers, of_workers.front().digest, &Entry::digest);
    const bool within = subject.first == Kind::kValue &&
                        of_workers.front().shown.find(kBetweenComponents) != std::string::npos;
    if (alike == std::ssize(of_workers) && !within) continue;
    if (lacks > 0 && may_lack(subject.first)) continue;
    const Words words = words_of(subject.first);
    fail(words.code, words.before, subject.second, words.after, ": ",
         parties_of(of_workers, words.verb), "; expected ", words.expected);
  }
}

}  // namespace tutti::internal
