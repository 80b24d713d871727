// Tests nests and named steps: conversions, messages, signatures and errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/nest.h"

#include <gtest/gtest.h>

#include "tests/strategy/parameter_server/packet_helpers.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/strategy/parameter_server/coordinator/per_worker.h"
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

namespace tutti {
namespace nest_test {

using internal::decode_nest;
using internal::encode_nest;
using internal::from_nest;
using internal::StepRegistry;
using internal::to_nest;
using store_tests::bytes;
using store_tests::number;
using store_tests::packet_of;
using store_tests::varint;
using testing::expect_error;
using testing::expect_same_bits;

Nest through_bytes(const Nest& nest) { return decode_nest(encode_nest(nest)); }

template <class T>
T there_and_back(const T& value) {
  return from_nest<T>(through_bytes(to_nest(value)), "value");
}

TEST(Nest, ValuesRoundTrip) {
  EXPECT_EQ(there_and_back(true), true);
  EXPECT_EQ(there_and_back(-7), -7);
  EXPECT_EQ(there_and_back(std::uint64_t{1} << 40), std::uint64_t{1} << 40);
  EXPECT_EQ(there_and_back(0.1f), 0.1f);
  EXPECT_EQ(there_and_back(0.1), 0.1);
  EXPECT_EQ(there_and_back(std::string("a\0b", 3)), std::string("a\0b", 3));
  using Deep = std::tuple<int, std::pair<double, std::string>, std::vector<std::vector<int>>,
                          std::map<std::string, float>>;
  const Deep deep{1, {2.5, "x"}, {{1, 2}, {}}, {{"a", 1.0f}, {"b", 2.0f}}};
  EXPECT_EQ(there_and_back(deep), deep);
}

TEST(Nest, TensorsOfEveryDTypeAndShapeRoundTrip) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{5}, Shape{64, 33}}) {
      const Tensor tensor = Tensor::full(shape, 1.0, dtype);
      expect_same_bits(there_and_back(tensor), tensor);
    }
  }
}

TEST(Nest, LargeTensorsAreNotCopiedIntoHeader) {
  const Tensor large = Tensor::ones({10'000});
  const Packet packet = encode_nest(to_nest(std::vector<Tensor>{large, Tensor(1.0f), large}));
  EXPECT_LT(packet.head.size(), 100u);
  EXPECT_EQ(packet.payload[0].bytes.data(), large.bytes().data());
}

TEST(Nest, StructureListsShapesWithoutValues) {
  const Nest nest = to_nest(std::tuple(1, std::string("t"), std::vector<float>{1.0f},
                                       std::map<std::string, bool>{{"v", true}}, Nest()));
  EXPECT_EQ(nest.structure(), "(int64 [], text, (float32 []), {v: bool []}, nothing)");
}

TEST(Nest, ErrorsNameElementAndExpectedAndActualTypes) {
  using Pair = std::pair<int, std::string>;
  const Nest pair = to_nest(Pair{1, "x"});
  expect_error(ErrorCode::kInvalidArgument, {"it, element 1", "expected int32", "got text"},
               [&] { from_nest<std::pair<int, int>>(pair, "it"); });
  expect_error(ErrorCode::kInvalidArgument,
               {"it: expected (int32, text, bool)", "(int64 [], text)"},
               [&] { from_nest<std::tuple<int, std::string, bool>>(pair, "it"); });
  EXPECT_ERROR(from_nest<std::int8_t>(to_nest(300), "it"), kInvalidArgument,
               "expected int8, from -128 to 127, got 300");
  EXPECT_ERROR(from_nest<std::uint32_t>(to_nest(-1), "it"), kInvalidArgument,
               "expected uint32, from 0", "got -1");
  EXPECT_ERROR(from_nest<int>(to_nest(1.0f), "it"), kInvalidArgument, "expected int32",
               "got float32 []");
  EXPECT_ERROR(from_nest<float>(to_nest(Tensor::ones({2})), "it"), kInvalidArgument,
               "expected float32", "got float32 [2]");
  EXPECT_ERROR(to_nest(~std::uint64_t{0}), kInvalidArgument, "below 2^63");
  EXPECT_ERROR(to_nest(Tensor()), kInvalidArgument, "undefined");
  EXPECT_ERROR(Nest(Nest::Map{{"a", Nest()}, {"a", Nest()}}), kInvalidArgument,
               "'a' appears twice");
}

TEST(Nest, ExcessiveDepthIsRejected) {
  Nest nest;
  for (int i = 0; i < Nest::kDeepest; ++i) nest = Nest(Nest::List{nest});
  EXPECT_EQ(through_bytes(nest).structure().size(), nest.structure().size());
  nest = Nest(Nest::List{nest});
  EXPECT_ERROR(encode_nest(nest), kInvalidArgument, "expected at most 32 levels");
  // In hand-encoded messages, 32 nested lists are accepted, and 33 or a thousand are refused.
  const auto lists = [](int depth) {
    std::string message = bytes(1, "");
    for (int i = 0; i < depth; ++i) message = bytes(6, bytes(1, message));
    return packet_of(message);
  };
  EXPECT_EQ(decode_nest(lists(Nest::kDeepest)).structure().size(), 2u * 32 + 7);
  EXPECT_ERROR(decode_nest(lists(Nest::kDeepest + 1)), kDataLoss, "nest: more than 32 levels");
  EXPECT_ERROR(decode_nest(lists(1000)), kDataLoss, "expected a message");
}

TEST(Nest, EncodedHandlesHaveNoOwner) {
  const auto owner = std::make_shared<int>(1);
  const Nest nest = to_nest(PerWorkerValues<float>({3, 4, "float", owner}));
  const Nest list = through_bytes(to_nest(std::vector<Nest>{nest}));
  const PerWorkerHandle* const handle = list.list()->front().handle();
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(handle->id, 3u);
  EXPECT_EQ(handle->instance, 4u);
  EXPECT_EQ(handle->type, "float");
  EXPECT_EQ(handle->owner, nullptr);
}

TEST(Nest, TruncatedAndCorruptedMessagesAreDetected) {
  const Packet packet =
      encode_nest(to_nest(std::tuple(std::string("text"), Tensor::ones({2, 3}), Tensor::ones({100}),
                                     std::map<std::string, int>{{"a", 1}})));
  for (std::size_t cut = 0; cut < packet.head.size(); ++cut) {
    Packet part = packet;
    part.head.resize(cut);
    EXPECT_ERROR(decode_nest(part), kDataLoss, cut == 0 ? "unknown kind" : "expected a message");
  }
  Packet without_payload = packet;
  without_payload.payload.clear();
  EXPECT_ERROR(decode_nest(without_payload), kDataLoss, "got only 0");
  Packet with_more = packet;
  with_more.payload.push_back(with_more.payload.front());
  EXPECT_ERROR(decode_nest(with_more), kDataLoss, "bytes more");
  // Changing a byte causes an error or yields a different nest, but never a buffer overrun.
  for (std::size_t i = 0; i < packet.head.size(); ++i) {
    for (const std::byte change : {std::byte{0x81}, std::byte{0x08}, std::byte{0x01}}) {
      Packet damaged = packet;
      damaged.head[i] ^= change;
      try {
        decode_nest(damaged);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      }
    }
  }
}

TEST(Nest, InconsistentMessagesAreRejected) {
  const auto refused = [](const std::string& message, const std::string& part,
                          std::size_t payload = 0) {
    EXPECT_ERROR(decode_nest(packet_of(message, payload)), kDataLoss, part);
  };
  const auto head = [](DType dtype, std::uint64_t dim) {
    return number(1, static_cast<std::uint64_t>(dtype)) + bytes(2, varint(dim));
  };
  EXPECT_EQ(decode_nest(packet_of(bytes(3, head(DType::kBool, 2)), 64)).structure(), "bool [2]");
  refused(bytes(3, head(static_cast<DType>(99), 1)), "expected the number of a dtype, got 99", 64);
  refused(bytes(3, head(DType::kUInt8, ~std::uint64_t{0})), "expected a valid shape", 64);
  refused(bytes(3, head(DType::kUInt8, std::uint64_t{1} << 40)), "got only 64", 64);
  const std::string name = bytes(1, "a"), nothing = bytes(2, bytes(1, ""));
  EXPECT_EQ(decode_nest(packet_of(bytes(7, name + nothing))).structure(), "{a: nothing}");
  refused(bytes(7, name + name + nothing), "2 names and 1 values");
  refused(bytes(7, name + name + nothing + nothing), "'a' appears twice");
  refused(bytes(6, bytes(1, "")), "unknown kind");
}

struct OwnValue {
  int number = 0;
};

/// Resources that return the same value for every handle.
class OneResource final : public internal::WorkerResources {
 public:
  std::shared_ptr<void> find(const PerWorkerHandle&) override { return value; }
  const std::shared_ptr<OwnValue> value = std::make_shared<OwnValue>();
};

float scaled(const Tensor& x, float factor) { return x.item() * factor; }

TEST(StepRegistry, SignaturesAreDerivedFromTypes) {
  StepRegistry registry;
  registry.define("scaled", &scaled);
  registry.define("mixed", [](const std::string&, std::vector<std::pair<int, bool>>, OwnValue&,
                              double) { return std::map<std::string, Tensor>{}; });
  EXPECT_EQ(registry.find("scaled").signature, "scaled(Tensor, float32) -> float32");
  EXPECT_EQ(registry.find("mixed").signature,
            "mixed(text, list of (int32, bool), per-worker "
            "tutti::nest_test::OwnValue, float64) -> map of Tensor");
  EXPECT_EQ(registry.find("mixed").num_parameters, 4);
}

TEST(StepRegistry, StepsRunWithConvertedArguments) {
  StepRegistry registry;
  OneResource resources;
  int captured = 0;
  registry.define("scaled", &scaled);
  registry.define("own", [&captured](OwnValue& value, int add) {
    value.number += add;
    captured = value.number;
  });
  const Nest result =
      registry.find("scaled").run(to_nest(std::tuple(Tensor(3.0f), 2.0f)), resources);
  EXPECT_EQ(from_nest<float>(result, "result"), 6.0f);
  const Nest handle(PerWorkerHandle{0, 0, internal::type_name(typeid(OwnValue)), {}});
  EXPECT_TRUE(
      registry.find("own").run(Nest(Nest::List{handle, to_nest(5)}), resources).is_nothing());
  EXPECT_EQ(captured, 5);
  EXPECT_EQ(resources.value->number, 5);
  const auto input_error = [&](const Nest& arguments, const std::vector<std::string>& parts) {
    try {
      registry.find("own").run(arguments, resources);
      ADD_FAILURE() << "no error";
    } catch (const OriginError& error) {
      EXPECT_EQ(error.origin(), ErrorOrigin::kInput);
      for (const std::string& part : parts) {
        EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
      }
    }
  };
  input_error(to_nest(std::tuple(1, 1)), {"argument 0", "expected per-worker", "got int64 []"});
  input_error(to_nest(std::vector<int>{}), {"step 'own': expected 2 arguments, got ()"});
  input_error(Nest(Nest::List{Nest(PerWorkerHandle{0, 0, "int", {}}), to_nest(5)}),
              {"expected per-worker", "got per-worker int"});
}

TEST(StepRegistry, ErrorNamesFirstDifferenceBetweenTasks) {
  StepRegistry chief, worker;
  chief.define("train", [](Tensor) {});
  chief.define("evaluate", [](int) {});
  chief.define("same", [] {});
  worker.define("train", [](Tensor, int) {});
  worker.define("same", [] {});
  worker.define("test", [] { return 1.0f; });
  EXPECT_NE(chief.text(), worker.text());
  try {
    StepRegistry::require_same(chief.text(), "the chief", worker.text(), "worker 1");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(error.message(),
              "steps: the chief defines evaluate(int32) -> nothing, but worker 1 defines same() -> "
              "nothing; expected the same program on all tasks");
  }
  StepRegistry again;
  again.define("evaluate", [](int) {});
  again.define("same", [] {});
  again.define("train", [](Tensor) {});  // defined in a different order
  EXPECT_EQ(again.text(), chief.text());
  StepRegistry::require_same(chief.text(), "a", again.text(), "b");
  again.define_resource("float", "made by a function", [](int, std::uint64_t) { return nullptr; });
  EXPECT_ERROR(StepRegistry::require_same(chief.text(), "a", again.text(), "b"),
               kFailedPrecondition,
               "a defines nothing more, but b defines per-worker value 0: float");
}

TEST(StepRegistry, InvalidNamesAreRejected) {
  StepRegistry registry;
  for (const char* name : {"", "a(b", "a:b", "a\nb"}) {
    EXPECT_ERROR(registry.define(name, [] {}), kInvalidArgument, "expected a non-empty name");
  }
  EXPECT_ERROR(registry.find("x"), kNotFound, "got 'x'");
  EXPECT_ERROR(registry.find_resource(3), kNotFound, "per-worker value 3",
               "only 0 per-worker values");
}

}  // namespace nest_test
}  // namespace tutti
