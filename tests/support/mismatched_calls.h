// Table of collective calls in which one rank's call is invalid or differs from the other ranks'
// calls. Checks that, under every algorithm, each rank gets an error that names both calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::mismatched_calls {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Floats = std::span<float>;

struct Kind {
  const char* name;
  /// Fragments of the error: `own` describes the differing call, and `others` the other ranks'
  /// calls. For invalid calls ("arguments"), `own` is the reason and `others` is null.
  const char *own, *others;
  /// `odd`: true on the rank whose call differs.
  void (*call)(Communicator& own, bool odd, Floats a, Floats b);
};

inline std::vector<int> all_of(const Communicator& own) {
  std::vector<int> ranks;
  for (int r = 0; r < own.size(); ++r) ranks.push_back(r);
  return ranks;
}

inline const Kind kKinds[] = {
    {"operation", "broadcast\\(", "all_reduce\\(SUM",
     [](Communicator& c, bool odd, Floats a, Floats b) {
       odd ? c.broadcast(a, 0) : c.all_reduce(ReduceOp::kSum, a, b);
     }},
    {"reduce op", "all_reduce\\(MAX", "all_reduce\\(SUM",
     [](Communicator& c, bool odd, Floats a, Floats) {
       c.all_reduce(odd ? ReduceOp::kMax : ReduceOp::kSum, a);
     }},
    {"dtype", "int32", "float32",
     [](Communicator& c, bool odd, Floats a, Floats) {
       std::vector<std::int32_t> integers(a.size());
       odd ? c.all_reduce(ReduceOp::kSum, std::span(integers)) : c.all_reduce(ReduceOp::kSum, a);
     }},
    {"count", "x (11|119999)[^0-9]", "x (12|120000)[^0-9]",
     [](Communicator& c, bool odd, Floats a, Floats) {
       c.all_reduce(ReduceOp::kSum, odd ? a.first(a.size() - 1) : a);
     }},
    {"shape", "\\[(3|30000), 4\\]", "\\[4, (3|30000)\\]",
     [](Communicator& c, bool odd, Floats a, Floats) {
       const auto rows = static_cast<std::int64_t>(a.size() / 4);
       const Shape shape = odd ? Shape{rows, 4} : Shape{4, rows};
       c.all_reduce(ReduceOp::kSum, a, {.shape = &shape});
     }},
    {"root", "root 1", "root 0",
     [](Communicator& c, bool odd, Floats a, Floats) { c.broadcast(a, odd ? 1 : 0); }},
    {"name", "'dense/bias'", "'dense/kernel'",
     [](Communicator& c, bool odd, Floats a, Floats) {
       c.all_reduce(ReduceOp::kSum, a, {.name = odd ? "dense/bias" : "dense/kernel"});
     }},
    {"order", "'bias'", "'kernel'",
     [](Communicator& c, bool odd, Floats a, Floats) {
       // In the third step, the differing rank swaps the two calls.
       for (int step = 0; step < 3; ++step) {
         const bool swaps = odd && step == 2;
         c.all_reduce(ReduceOp::kSum, a, {.name = swaps ? "bias" : "kernel"});
         c.all_reduce(ReduceOp::kSum, a, {.name = swaps ? "kernel" : "bias"});
       }
     }},
    {"group", "names [0-9](;|$)", "the group of ranks 0, 1",
     [](Communicator& c, bool odd, Floats, Floats) {
       const std::vector<int> members = odd ? std::vector<int>{c.rank()} : all_of(c);
       (void)c.group(members);
     }},
    {"arguments: root", "expected a root from 0 to ", nullptr,
     [](Communicator& c, bool odd, Floats a, Floats) { c.broadcast(a, odd ? c.size() : 0); }},
    {"arguments: memory", "input and output overlap", nullptr,
     [](Communicator& c, bool odd, Floats a, Floats b) {
       const std::size_t half = a.size() / 2;
       c.all_reduce(ReduceOp::kSum, a.first(half), odd ? a.subspan(1, half) : b.first(half));
     }},
    {"arguments: type", "MEAN needs a floating-point type, got int32", nullptr,
     [](Communicator& c, bool odd, Floats a, Floats) {
       std::vector<std::int32_t> integers(a.size());
       odd ? c.all_reduce(ReduceOp::kMean, std::span(integers)) : c.all_reduce(ReduceOp::kMean, a);
     }},
    {"arguments: length", "expected an output of ", nullptr,
     [](Communicator& c, bool odd, Floats a, Floats) {
       std::vector<float> all(a.size() * static_cast<std::size_t>(c.size()));
       const std::vector<std::size_t> counts(static_cast<std::size_t>(c.size()), a.size());
       c.all_gather(a, std::span(all).first(all.size() - (odd ? 1 : 0)), counts);
     }},
    {"arguments: group", "expected increasing ranks from 0 to ", nullptr,
     [](Communicator& c, bool odd, Floats, Floats) {
       (void)c.group(odd ? std::vector<int>{c.rank(), c.size()} : all_of(c));
     }},
};

/// Returns the call's error with its code, or "".
inline std::string error_of_call(const Kind& kind, Communicator& own, bool odd, std::size_t count) {
  std::vector<float> a(count, 1.0f), b(count);
  try {
    kind.call(own, odd, std::span(a), std::span(b));
  } catch (const Error& error) {
    return concat(to_string(error.code()), ": ", error.message());
  }
  return "";
}

inline void expect_error(const Kind& kind, int rank, int odd, const std::string& error) {
  EXPECT_THAT(error, StartsWith("INVALID_ARGUMENT: "));
  EXPECT_THAT(error, ContainsRegex(kind.own));
  const bool is_group = std::string(kind.name).ends_with("group");
  if (kind.others) {
    EXPECT_THAT(error, AllOf(HasSubstr(concat("collective mismatch (", kind.name, ")")),
                             ContainsRegex(kind.others),
                             ContainsRegex(concat("rank ", odd, " (calls|names)")),
                             ContainsRegex(concat("rank [^", odd, "] (calls|names)"))));
    // The error contains the source lines of both calls, unless their groups differ.
    if (!is_group) {
      EXPECT_THAT(error, ContainsRegex("mismatched_calls.h:.*mismatched_calls.h:"));
    }
  } else if (rank == odd) {
    EXPECT_THAT(error, StartsWith(concat("INVALID_ARGUMENT: rank ", odd, ": ")));
    EXPECT_THAT(error, ::testing::Not(HasSubstr("mismatch (")));
  } else if (is_group) {
    EXPECT_THAT(error,
                HasSubstr(concat("mismatch (group): rank ", odd, " did not name a valid group")));
  } else {
    EXPECT_THAT(error, ContainsRegex(concat("mismatch \\(arguments\\): .*rank ", odd,
                                            " calls .*mismatched_calls.h:[0-9]+, which it "
                                            "refuses: ")));
  }
}

/// Expects that all ranks refuse invalid calls, and that `own` remains usable.
inline void expect_refusals(Communicator& own) {
  for (const Kind& kind : kKinds) {
    if (kind.others) continue;
    EXPECT_THAT(error_of_call(kind, own, true, 12), HasSubstr(concat(": rank ", own.rank(), ": ")))
        << kind.name;
  }
  std::vector<float> ones(12, 1.0f);
  own.all_reduce(ReduceOp::kSum, std::span(ones));
  EXPECT_EQ(ones.front(), static_cast<float>(own.size()));
}

/// Function that creates this rank's transport in the group called `name`; all ranks call it in the
/// same order.
using Connect = std::function<std::shared_ptr<Transport>(const std::string& name)>;

/// Expects an error on every rank for each kind of mismatched call. Collective: all ranks must call
/// it. Every case uses its own group.
inline void expect_errors_on_every_rank(const Connect& connect) {
  const auto make = [&](const std::string& name, const char* algorithm) {
    return make_communicator(connect(name),
                             {.algorithm = algorithm, .timeout = std::chrono::seconds(100)});
  };
  const auto meeting = make("meeting", "canonical");
  int number = 0;
  for (const char* const algorithm : {"canonical", "ring", "hierarchical_copy"}) {
    for (const Kind& kind : kKinds) {
      // 120,000 floats are too many for a message that also contains the header.
      for (const std::size_t count : {12, 120'000}) {
        SCOPED_TRACE(concat(algorithm, ", ", kind.name, " x ", count));
        const auto own = make(concat("case-", number), algorithm);
        const int odd = number++ % own->size();
        meeting->barrier();
        expect_error(kind, own->rank(), odd, error_of_call(kind, *own, own->rank() == odd, count));
        meeting->barrier();
      }
    }
    expect_refusals(*make(concat("alike-", algorithm), algorithm));
    meeting->barrier();
  }
}

}  // namespace tutti::mismatched_calls
