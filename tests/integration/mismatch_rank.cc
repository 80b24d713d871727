// One rank of a group whose calls differ on purpose, in every way, under every algorithm: says what
// error it got, and when.
// SPDX-License-Identifier: Apache-2.0
//
// mismatch_rank --transport shm|tcp --rank R --size N --folder F: as a process of its own; mpi:
// under mpirun. A line of JSON per case, in a file of each rank: F/seen-by-rank-R.
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"
#include "tutti/core/clock.h"
#include "tutti/core/flags.h"
#include "tutti/core/json.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

namespace {

using namespace tutti;

struct RankOptions {
  std::string transport = "shm";
  std::int64_t rank = 0;
  std::int64_t size = 3;
  std::string folder = "";
};

/// Makes a rank's transport of a group with this name; called by all ranks in the same order.
using Connect = std::function<std::shared_ptr<Transport>(const std::string& name)>;

std::string report_folder;

using Floats = std::span<float>;
struct Kind {
  const char* name;
  /// `odd`: the rank that does something else.
  void (*call)(Communicator& own, bool odd, Floats a, Floats b);
};

std::vector<int> all_of(const Communicator& own) {
  std::vector<int> ranks;
  for (int r = 0; r < own.size(); ++r) ranks.push_back(r);
  return ranks;
}

const Kind kKinds[] = {
    {"operation", [](Communicator& c, bool odd, Floats a,
                     Floats b) { odd ? c.broadcast(a, 0) : c.all_reduce(ReduceOp::kSum, a, b); }},
    {"reduce op", [](Communicator& c, bool odd, Floats a,
                     Floats) { c.all_reduce(odd ? ReduceOp::kMax : ReduceOp::kSum, a); }},
    {"dtype",
     [](Communicator& c, bool odd, Floats a, Floats) {
       std::vector<std::int32_t> integers(a.size());
       odd ? c.all_reduce(ReduceOp::kSum, std::span(integers)) : c.all_reduce(ReduceOp::kSum, a);
     }},
    {"count", [](Communicator& c, bool odd, Floats a,
                 Floats) { c.all_reduce(ReduceOp::kSum, odd ? a.first(a.size() - 1) : a); }},
    {"shape",
     [](Communicator& c, bool odd, Floats a, Floats) {
       const auto rows = static_cast<std::int64_t>(a.size() / 4);
       const Shape shape = odd ? Shape{rows, 4} : Shape{4, rows};
       c.all_reduce(ReduceOp::kSum, a, {.shape = &shape});
     }},
    {"root", [](Communicator& c, bool odd, Floats a, Floats) { c.broadcast(a, odd ? 1 : 0); }},
    {"name",
     [](Communicator& c, bool odd, Floats a, Floats) {
       c.all_reduce(ReduceOp::kSum, a, {.name = odd ? "dense/bias" : "dense/kernel"});
     }},
    {"order",
     [](Communicator& c, bool odd, Floats a, Floats) {
       for (int step = 0; step < 3; ++step) {  // what comes next is known by then
         const bool swaps = odd && step == 2;
         c.all_reduce(ReduceOp::kSum, a, {.name = swaps ? "bias" : "kernel"});
         c.all_reduce(ReduceOp::kSum, a, {.name = swaps ? "kernel" : "bias"});
       }
     }},
    {"group",
     [](Communicator& c, bool odd, Floats, Floats) {
       const std::vector<int> members = odd ? std::vector<int>{c.rank()} : all_of(c);
       (void)c.group(members);
     }},
    {"compression",
     [](Communicator& c, bool odd, Floats a, Floats) {
       CallOptions options;
       if (odd) options.compression = DType::kFloat16;
       c.all_reduce(ReduceOp::kSum, a, options);
     }},
    // What no rank may ask for.
    {"arguments: root",
     [](Communicator& c, bool odd, Floats a, Floats) { c.broadcast(a, odd ? c.size() : 0); }},
    {"arguments: memory",
     [](Communicator& c, bool odd, Floats a, Floats b) {
       const std::size_t half = a.size() / 2;
       c.all_reduce(ReduceOp::kSum, a.first(half), odd ? a.subspan(1, half) : b.first(half));
     }},
    {"arguments: type",
     [](Communicator& c, bool odd, Floats a, Floats) {
       std::vector<std::int32_t> integers(a.size());
       odd ? c.all_reduce(ReduceOp::kMean, std::span(integers)) : c.all_reduce(ReduceOp::kMean, a);
     }},
    {"arguments: length",
     [](Communicator& c, bool odd, Floats a, Floats) {
       std::vector<float> all(a.size() * static_cast<std::size_t>(c.size()));
       const std::vector<std::size_t> counts(static_cast<std::size_t>(c.size()), a.size());
       c.all_gather(a, std::span(all).first(all.size() - (odd ? 1 : 0)), counts);
     }},
    {"arguments: group",
     [](Communicator& c, bool odd, Floats, Floats) {
       (void)c.group(odd ? std::vector<int>{c.rank(), c.size()} : all_of(c));
     }},
};

constexpr const char* kAlgorithms[] = {"canonical", "ring", "tree", "halving_doubling"};
/// Less and more than what goes in one message with its head.
constexpr std::size_t kCounts[] = {12, 120'000};

std::unique_ptr<Communicator> make(std::shared_ptr<Transport> transport,
                                   const std::string& algorithm) {
  return make_communicator(std::move(transport),
                           {.algorithm = algorithm, .timeout = std::chrono::seconds(100)});
}

/// What the rank got, for the test.
void report(const Communicator& own, const std::string& algorithm, const Kind& kind,
            std::size_t count, int odd, double seconds, const std::string& error) {
  Json line = Json::object();
  line.set("rank", own.rank()).set("algorithm", algorithm).set("kind", kind.name);
  line.set("count", std::uint64_t{count}).set("odd", odd);
  line.set("seconds", seconds).set("error", error);
  std::ofstream file(concat(report_folder, "/seen-by-rank-", own.rank()), std::ios::app);
  file << line.dump() << std::endl;
}

void play(Communicator& own, const std::string& algorithm, const Kind& kind, std::size_t count,
          int odd) {
  std::vector<float> a(count, 1.0f), b(count);
  std::string message;
  const TimePoint begin = Clock::system().now();
  try {
    kind.call(own, own.rank() == odd, std::span(a), std::span(b));
  } catch (const Error& error) {
    message = concat(to_string(error.code()), ": ", error.message());
  }
  const std::chrono::duration<double> seconds = Clock::system().now() - begin;
  report(own, algorithm, kind, count, odd, seconds.count(), message);
}

/// All ranks ask for what none may ask for, and go on.
void play_alike(Communicator& own, const std::string& algorithm) {
  std::vector<float> a(12, 1.0f), b(12);
  std::string message;
  const TimePoint begin = Clock::system().now();
  for (const Kind& kind : kKinds) {
    if (!std::string_view(kind.name).starts_with("arguments")) continue;
    try {
      kind.call(own, true, std::span(a), std::span(b));
      message += concat(kind.name, ": no error; ");
    } catch (const Error& error) {
      const bool is_own = error.message().starts_with(concat("rank ", own.rank(), ": "));
      if (!is_own) message += concat(kind.name, ": ", error.message(), "; ");
    }
  }
  try {
    own.all_reduce(ReduceOp::kSum, std::span(a));
    if (a.front() != static_cast<float>(own.size())) message += concat("the sum is ", a.front());
  } catch (const Error& error) {
    message += error.message();
  }
  const std::chrono::duration<double> seconds = Clock::system().now() - begin;
  report(own, algorithm, {.name = "alike", .call = nullptr}, a.size(), -1, seconds.count(),
         message);
}

/// Every case on a group of its own, which all ranks enter at once.
void play_all(const Connect& connect) {
  const auto meeting = make(connect("meeting"), "canonical");
  int number = 0;
  for (const char* algorithm : kAlgorithms) {
    for (const Kind& kind : kKinds) {
      for (const std::size_t count : kCounts) {
        const auto own = make(connect(concat("case-", number)), algorithm);
        meeting->barrier();
        play(*own, algorithm, kind, count, number++ % own->size());
        meeting->barrier();
      }
    }
    const auto own = make(connect(concat("alike-", algorithm)), algorithm);
    play_alike(*own, algorithm);
    meeting->barrier();
  }
}

void play_between_processes(const RankOptions& options) {
  if (options.transport == "mpi") {
    play_all([](const std::string& name) { return mpi_transport({.name = name}); });
    return;
  }
  FileKeyValueStore store(options.folder);
  play_all([&](const std::string& name) {
    return connect_ranks(static_cast<int>(options.rank), static_cast<int>(options.size), store,
                         {.way = parse_way(options.transport), .key_prefix = name})
        .transport;
  });
}

}  // namespace

int main(int argc, char** argv) {
  RankOptions options;
  Flags flags("A rank whose calls differ from the others'");
  flags.add_choice("--transport", options.transport, {"shm", "tcp", "mpi"}, "which");
  flags.add("--rank", options.rank, "of this process: shm, tcp");
  flags.add("--size", options.size, "how many ranks there are");
  flags.add("--folder", options.folder, "where the processes find each other, and write to");
  if (const int code = flags.parse(argc, argv); code >= 0) return code;
  report_folder = options.folder;
  try {
    play_between_processes(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
