// Tests headers of collective calls, and values that rank 0 relays between ranks.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/collective_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cross_device_ops/algorithms/rank_link.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cross_device_ops/rank_durations.h"

namespace tutti::collective_header_test {
using internal::CollectiveHeader;
using internal::decode_header;
using internal::link_all;
using internal::Mismatch;
using internal::Purpose;
using internal::RankLink;
using testing::expect_error;
using ::testing::HasSubstr;

CollectiveHeader sample() {
  CollectiveHeader header;
  header.sequence = 17;
  header.group = 5;
  header.count = 4096;
  header.name_hash = 0x123456789abcdef0u;
  header.rank = 2;
  header.line = 41;
  std::ranges::copy(std::string_view("dense/kernel"), header.name.begin());
  std::ranges::copy(std::string_view("app/step.cc"), header.file.begin());
  return header;
}

std::string data_loss_of(std::span<const std::byte> bytes) {
  try {
    decode_header(bytes);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kDataLoss ? error.message() : "another code";
  }
  return "no error";
}

TEST(CollectiveHeader, RoundTripsAsLittleEndianBytes) {
  const CollectiveHeader sent = sample();
  const CollectiveHeader got = decode_header(internal::encode(sent));
  EXPECT_EQ(got.difference(sent), std::nullopt);
  EXPECT_EQ(got.rank, 2);
  EXPECT_EQ(got.describe(),
            "all_reduce(SUM, float32 x 4096, 'dense/kernel') #17 at app/step.cc:41");
  const auto bytes = internal::encode(sample());
  EXPECT_EQ(static_cast<char>(bytes[0]), 'T');
  EXPECT_EQ(static_cast<char>(bytes[3]), '4');
  EXPECT_EQ(static_cast<int>(bytes[4]), 17);  // the sequence number's lowest byte
}

TEST(CollectiveHeader, FingerprintDependsOnEveryComparedField) {
  const CollectiveHeader first = sample();
  const auto changed = [&](auto change) {
    CollectiveHeader other = first;
    change(other);
    EXPECT_NE(other.fingerprint(), first.fingerprint());
    const auto kind = first.difference(other);
    EXPECT_TRUE(kind);
    return kind.value_or(Mismatch::kGroup);
  };
  EXPECT_EQ(changed([](auto& h) { ++h.group; }), Mismatch::kGroup);
  EXPECT_EQ(changed([](auto& h) { ++h.sequence; }), Mismatch::kOrder);
  EXPECT_EQ(changed([](auto& h) { h.collective = Collective::kReduce; }), Mismatch::kOperation);
  EXPECT_EQ(changed([](auto& h) { h.op = ReduceOp::kMin; }), Mismatch::kReduceOp);
  EXPECT_EQ(changed([](auto& h) { h.dtype = DType::kInt32; }), Mismatch::kDType);
  EXPECT_EQ(changed([](auto& h) { h.on_gpu = 1; }), Mismatch::kDevice);
  EXPECT_EQ(changed([](auto& h) { --h.count; }), Mismatch::kCount);
  EXPECT_EQ(changed([](auto& h) { h.counts_hash = 3; }), Mismatch::kCount);
  EXPECT_EQ(changed([](auto& h) { h.shape_hash = 3; }), Mismatch::kShape);
  EXPECT_EQ(changed([](auto& h) { h.name_hash = 3; }), Mismatch::kName);
  CollectiveHeader sent = first, got = first;
  sent.collective = got.collective = Collective::kBroadcast;
  got.root = 1;
  EXPECT_EQ(sent.difference(got), Mismatch::kRoot);
  EXPECT_NE(sent.fingerprint(), got.fingerprint());
}

TEST(CollectiveHeader, FingerprintIgnoresRankAndCallSite) {
  CollectiveHeader other = sample();
  other.rank = 3;
  other.line = 7;
  other.file[0] = 'x';
  EXPECT_EQ(other.fingerprint(), sample().fingerprint());
  EXPECT_EQ(other.difference(sample()), std::nullopt);
}

TEST(CollectiveHeader, MismatchErrorNamesLowerRankFirst) {
  CollectiveHeader other = sample();
  other.rank = 0;
  other.count = 12;
  const std::string message = internal::mismatch_message(sample(), other);
  EXPECT_THAT(message, HasSubstr("collective mismatch (count): rank 0 calls all_reduce(SUM, "
                                 "float32 x 12"));
  EXPECT_THAT(message, HasSubstr("rank 2 calls"));
}

TEST(CollectiveHeader, RefusalDescribesReason) {
  CollectiveHeader refused = sample();
  refused.refuse("expected a root from 0 to 2, got 7");
  const CollectiveHeader got = decode_header(internal::encode(refused));
  EXPECT_TRUE(got.is_refused());
  EXPECT_FALSE(sample().is_refused());
  EXPECT_EQ(got.describe(),
            "all_reduce(SUM, float32 x 4096) #17 at app/step.cc:41, which it refuses: expected a "
            "root from 0 to 2, got 7");
  EXPECT_EQ(got.difference(sample()), Mismatch::kArguments);
  EXPECT_NE(got.fingerprint(), sample().fingerprint());
  EXPECT_EQ(got.difference(refused), std::nullopt);
  EXPECT_EQ(got.fingerprint(), refused.fingerprint());
  CollectiveHeader later = refused;
  ++later.sequence;
  EXPECT_EQ(later.difference(sample()), Mismatch::kOrder);
  refused.refuse(std::string(86, 'a') + "b");
  EXPECT_THAT(refused.describe(), ::testing::EndsWith(": " + std::string(86, 'a')));
}

TEST(CollectiveHeader, CorruptedBytesAreRefused) {
  const auto good = internal::encode(sample());
  EXPECT_THAT(data_loss_of(std::span(good).first(100)), HasSubstr("expected 208 bytes, got 100"));
  auto bytes = good;
  bytes[0] = std::byte{0};
  EXPECT_THAT(data_loss_of(bytes), HasSubstr("a different version"));
  // offsets of collective, op, dtype and `refused`
  for (const std::size_t place : {72u, 73u, 74u, 75u}) {
    bytes = good;
    bytes[place] = std::byte{200};
    EXPECT_THAT(data_loss_of(bytes), HasSubstr("collective header: unknown")) << place;
  }
  bytes = good;
  std::fill(bytes.begin() + 76, bytes.end(), std::byte{'a'});  // unterminated strings
  EXPECT_THAT(data_loss_of(bytes), HasSubstr("unknown text"));
}

TimePoint in(int milliseconds) {
  return deadline_after(Clock::system().now(), std::chrono::milliseconds(milliseconds));
}

TEST(RankLink, EveryRankReceivesAllValues) {
  for (const int size : {1, 2, 5}) {
    const auto transports = in_process_transports(size);
    std::vector<std::uint64_t> expected;
    for (int r = 0; r < size; ++r) expected.push_back(static_cast<std::uint64_t>(10 * r + 3));
    expect_on_ranks(size, [&](int rank) {
      const auto r = static_cast<std::size_t>(rank);
      EXPECT_EQ(link_all(transports[r]).exchange(Purpose::kNonce, expected[r], in(20'000), "here"),
                expected);
    });
  }
}

void expect_missing(int size, const std::vector<int>& missing, const char* named) {
  const auto transports = in_process_transports(size);
  expect_on_ranks(size, [&](int rank) {
    if (std::ranges::find(missing, rank) != missing.end()) return;
    expect_error(ErrorCode::kDeadlineExceeded, {"here: expected all 4 ranks", named}, [&] {
      const RankLink link = link_all(transports[static_cast<std::size_t>(rank)]);
      link.exchange(Purpose::kNonce, rank, in(100), "here");
    });
  });
}

TEST(RankLink, EveryRankReportsMissingRanks) {
  expect_missing(4, {3}, "; rank 3 did not join");
  expect_missing(4, {1, 3}, "; rank 1, rank 3 did not join");
  expect_missing(4, {0}, "; rank 0 did not join");
}

TEST(RankLink, MissingRank0IsReportedAtDeadline) {
  const TimePoint begin = Clock::system().now();
  expect_missing(4, {0}, "; rank 0 did not join");
  EXPECT_LT(Clock::system().now() - begin, durations::kLinger);
}

TEST(RankLink, Rank0WithLaterDeadlineIsNotReportedMissing) {
  const auto transports = in_process_transports(3);
  const auto exchange = [&](std::size_t rank, int milliseconds) {
    link_all(transports[rank]).exchange(Purpose::kNonce, rank, in(milliseconds), "here");
  };
  expect_on_ranks(3, [&](int rank) {
    if (rank == 0) expect_error(ErrorCode::kAborted, {"enough"}, [&] { exchange(0, 20'000); });
    if (rank != 1) return;
    expect_error(ErrorCode::kDeadlineExceeded,
                 {"here: expected all 3 ranks", "; a rank that rank 0 waits for did not join"},
                 [&] { exchange(1, 100); });
    transports[1]->abort(Error(ErrorCode::kInternal, "enough"));
  });
}

}  // namespace tutti::collective_header_test
