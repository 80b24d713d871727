// Nests: conversions, bytes, and what is wrong with bytes that are none.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/nest.h"

#include <gtest/gtest.h>

#include "tests/support/tensor_matchers.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/strategy/parameter_server/coordinator/per_worker.h"

namespace tutti {
namespace nest_test {

using internal::decode_nest;
using internal::encode_nest;
using internal::from_nest;
using internal::to_nest;
using testing::expect_error;
using testing::expect_same_bits;

Nest through_bytes(const Nest& nest) {
  Packet packet;
  packet.head.resize(3);  // behind something else
  encode_nest(nest, packet);
  std::size_t place = 3, payload_place = 0;
  Nest read = decode_nest(packet, place, payload_place);
  EXPECT_EQ(place, packet.head.size());
  EXPECT_EQ(payload_place, packet.payload_bytes());
  return read;
}

template <class T>
T there_and_back(const T& value) {
  return from_nest<T>(through_bytes(to_nest(value)), "value");
}

TEST(Nest, ValuesComeBackThroughBytes) {
  EXPECT_EQ(there_and_back(true), true);
  EXPECT_EQ(there_and_back(-7), -7);
  EXPECT_EQ(there_and_back(std::uint64_t{1} << 40), std::uint64_t{1} << 40);
  EXPECT_EQ(there_and_back(0.1f), 0.1f);
  EXPECT_EQ(there_and_back(0.1), 0.1);
  EXPECT_EQ(there_and_back(std::string("a\0b", 3)), std::string("a\0b", 3));
  using Deep = std::tuple<int, std::pair<double, std::string>, std::vector<std::vector<int>>,
                          std::map<std::string, float>, std::optional<int>, std::optional<int>>;
  const Deep deep{1, {2.5, "x"}, {{1, 2}, {}}, {{"a", 1.0f}, {"b", 2.0f}}, 3, std::nullopt};
  EXPECT_EQ(there_and_back(deep), deep);
}

TEST(Nest, TensorsOfEveryTypeAndSizeComeBack) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{5}, Shape{64, 33}}) {
      const Tensor tensor = Tensor::full(shape, 1.0, dtype);
      expect_same_bits(there_and_back(tensor), tensor);
    }
  }
}

TEST(Nest, LargeTensorsAreNotCopiedIntoTheHead) {
  const Tensor large = Tensor::ones({1000});
  Packet packet;
  encode_nest(to_nest(std::vector<Tensor>{large, Tensor(1.0f), large}), packet);
  EXPECT_LT(packet.head.size(), 100u);
  ASSERT_EQ(packet.payload.size(), 2u);
  EXPECT_EQ(packet.payload[0].bytes.data(), large.bytes().data());
}

TEST(Nest, StructureIsSaidWithoutValues) {
  const Nest nest = to_nest(std::tuple(1, std::string("t"), std::vector<float>{1.0f},
                                       std::map<std::string, bool>{{"v", true}}, Nest()));
  EXPECT_EQ(nest.structure(), "(int64 [], text, (float32 []), {v: bool []}, nothing)");
  EXPECT_EQ(nest.list()->at(3).find("v")->structure(), "bool []");
  EXPECT_EQ(nest.list()->at(3).find("w"), nullptr);
}

TEST(Nest, ErrorsSayWhereExpectedAndGot) {
  using Pair = std::pair<int, std::string>;
  const Nest pair = to_nest(Pair{1, "x"});
  expect_error(ErrorCode::kInvalidArgument, {"it, element 1", "expected int32", "got text"},
               [&] { from_nest<std::pair<int, int>>(pair, "it"); });
  expect_error(ErrorCode::kInvalidArgument,
               {"it: expected (int32, text, bool)", "(int64 [], text)"},
               [&] { from_nest<std::tuple<int, std::string, bool>>(pair, "it"); });
  expect_error(ErrorCode::kInvalidArgument, {"expected int8, from -128 to 127, got 300"},
               [&] { from_nest<std::int8_t>(to_nest(300), "it"); });
  expect_error(ErrorCode::kInvalidArgument, {"expected uint32, from 0", "got -1"},
               [&] { from_nest<std::uint32_t>(to_nest(-1), "it"); });
  expect_error(ErrorCode::kInvalidArgument, {"expected int32", "got float32 []"},
               [&] { from_nest<int>(to_nest(1.0f), "it"); });
  expect_error(ErrorCode::kInvalidArgument, {"expected float32", "got float32 [2]"},
               [&] { from_nest<float>(to_nest(Tensor::ones({2})), "it"); });
  expect_error(ErrorCode::kInvalidArgument, {"below 2^63"}, [&] { to_nest(~std::uint64_t{0}); });
  expect_error(ErrorCode::kInvalidArgument, {"undefined"}, [&] { to_nest(Tensor()); });
  expect_error(ErrorCode::kInvalidArgument, {"'a' stands twice"}, [&] {
    Nest(Nest::Map{{"a", Nest()}, {"a", Nest()}});
  });
}

TEST(Nest, ANestDeeperThanAllowedIsRefused) {
  Nest nest;
  for (int i = 0; i < Nest::kDeepest; ++i) nest = Nest(Nest::List{nest});
  EXPECT_EQ(through_bytes(nest).structure().size(), nest.structure().size());
  nest = Nest(Nest::List{nest});
  Packet packet;
  expect_error(ErrorCode::kInvalidArgument, {"deeper than 32"}, [&] { encode_nest(nest, packet); });
}

TEST(Nest, HandlesTravelWithoutTheirOwner) {
  const auto owner = std::make_shared<int>(1);
  const Nest nest = to_nest(PerWorkerValues<float>({3, 4, "float", owner}));
  int num_handles = 0;
  through_bytes(to_nest(std::vector<Nest>{nest})).visit_handles([&](const PerWorkerHandle& handle) {
    ++num_handles;
    EXPECT_EQ(handle.id, 3u);
    EXPECT_EQ(handle.instance, 4u);
    EXPECT_EQ(handle.type, "float");
    EXPECT_EQ(handle.owner, nullptr);
  });
  EXPECT_EQ(num_handles, 1);
}

TEST(Nest, EveryCutAndEveryDamagedLengthIsFound) {
  Packet packet;
  encode_nest(to_nest(std::tuple(std::string("text"), Tensor::ones({2, 3}), Tensor::ones({100}),
                                 std::map<std::string, int>{{"a", 1}})),
              packet);
  for (std::size_t cut = 0; cut < packet.head.size(); ++cut) {
    Packet part = packet;
    part.head.resize(cut);
    std::size_t place = 0, payload_place = 0;
    expect_error(ErrorCode::kDataLoss, {"nest: "},
                 [&] { decode_nest(part, place, payload_place); });
  }
  Packet without_payload = packet;
  without_payload.payload.clear();
  std::size_t place = 0, payload_place = 0;
  expect_error(ErrorCode::kDataLoss, {"larger than what came"},
               [&] { decode_nest(without_payload, place, payload_place); });
  // Any byte may change: it is an error or another nest, and nothing is read beyond the end.
  for (std::size_t i = 0; i < packet.head.size(); ++i) {
    Packet damaged = packet;
    damaged.head[i] ^= std::byte{0x81};
    place = payload_place = 0;
    try {
      decode_nest(damaged, place, payload_place);
      EXPECT_LE(place, damaged.head.size());
      EXPECT_LE(payload_place, damaged.payload_bytes());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    }
  }
}

}  // namespace nest_test
}  // namespace tutti
