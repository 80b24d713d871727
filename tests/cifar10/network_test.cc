// Tests the CIFAR-10 tutorial: its network, against published numbers and double precision, and its
// input, learning rates, log lines, flags and archive.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/cifar10_network.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <ctime>
#include <sstream>

#include "examples/cifar10/cifar10_input.h"
#include "examples/cifar10/published_archive.h"
#include "examples/cifar10/speed_report.h"
#include "examples/cifar10/step_log.h"
#include "examples/cifar10/train_flags.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/thrown.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/random.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::cifar10_network_test {

using namespace examples::cifar10;

Tensor standardised_images(std::int64_t count, std::uint64_t seed) {
  return random_normal({count, 24, 24, 3}, RandomKey{.seed = seed, .purpose = kUserPurpose});
}

Tensor labels_of(std::int64_t count) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(i % kNumClasses);
  return Tensor::from<std::int64_t>({count}, labels);
}

/// Computes the published network independently in float64.
Tensor expected_logits(const std::vector<Variable>& variables, const Tensor& images) {
  const auto value = [&](std::size_t i) { return cast(variables[i].value(), DType::kFloat64); };
  const auto conv = [&](const Tensor& x, std::size_t i) {
    return relu(conv2d(x, value(i), {.padding = Padding::kSame}) + value(i + 1));
  };
  const auto pool = [](const Tensor& x) {
    return max_pool2d(
        x, {.window_h = 3, .window_w = 3, .stride_h = 2, .stride_w = 2, .padding = Padding::kSame});
  };
  // Sums over nine channels; alpha is already 0.001 / 9 and is not divided by the number of
  // channels.
  const auto norm = [](const Tensor& x) {
    return local_response_normalization(
        x, {.depth_radius = 4, .bias = 1.0, .alpha = 0.001 / 9, .beta = 0.75});
  };
  const auto product = [&](const Tensor& x, std::size_t i) {
    return matmul(x, value(i)) + value(i + 1);
  };
  Tensor x = norm(pool(conv(cast(images, DType::kFloat64), 0)));
  x = flatten_rows(pool(norm(conv(x, 2))));
  return product(relu(product(relu(product(x, 4)), 6)), 8);
}

TEST(Cifar10Network, HasPublishedParameterCount) {
  VariableStore store;
  const Cifar10Network network(store);
  std::int64_t count = 0;
  std::vector<std::string> names;
  for (const Variable& variable : store.trainable_variables()) {
    count += variable.shape().num_elements();
    names.push_back(variable.name());
  }
  EXPECT_EQ(count, 1'068'298);
  EXPECT_EQ(names, (std::vector<std::string>{"conv1/weights", "conv1/biases", "conv2/weights",
                                             "conv2/biases", "local3/weights", "local3/biases",
                                             "local4/weights", "local4/biases",
                                             "softmax_linear/weights", "softmax_linear/biases"}));
}

TEST(Cifar10Network, InitialWeightsHaveTutorialStandardDeviations) {
  set_random_seed(2);
  VariableStore store;
  const Cifar10Network network(store);
  const double stddevs[] = {0.05, 0.05, 0.04, 0.04, 1.0 / 192.0};
  const double biases[] = {0.0, 0.1, 0.1, 0.1, 0.0};
  for (std::size_t layer = 0; layer < 5; ++layer) {
    const std::vector<double> w = store.variables()[2 * layer].value().to_doubles();
    double squares = 0.0, largest = 0.0;
    for (const double value : w) {
      squares += value * value;
      largest = std::max(largest, std::abs(value));
    }
    EXPECT_LE(largest, 2.0 * stddevs[layer] * (1.0 + 1e-6));
    // A normal distribution truncated at two standard deviations keeps 0.77374 of its variance.
    const double variance = squares / static_cast<double>(w.size());
    EXPECT_NEAR(variance / (0.77374 * stddevs[layer] * stddevs[layer]), 1.0,
                6.0 / std::sqrt(static_cast<double>(w.size())));
    for (const double bias : store.variables()[2 * layer + 1].value().to_doubles()) {
      EXPECT_EQ(bias, static_cast<double>(static_cast<float>(biases[layer])));
    }
  }
}

// The expected loss is ln 10 + 0.004 / 2 * 0.77374 * 0.04^2 * (2304 * 384 + 384 * 192) = 4.676; the
// tutorial logs 4.68.
TEST(Cifar10Network, LossOfStep0MatchesPublishedValue) {
  double mean = 0.0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    set_random_seed(seed);
    VariableStore store;
    const Cifar10Network network(store);
    Tower tower("tower_0");
    const Tensor logits = network.inference(tower, standardised_images(16, seed + 20));
    const double loss = Cifar10Network::loss(tower, logits, labels_of(16)).item();
    EXPECT_NEAR(loss, 4.676, 0.03) << "seed " << seed;
    mean += loss / 5.0;
  }
  EXPECT_NEAR(mean, 4.676, 0.02);
}

TEST(Cifar10Network, LogitsMatchDirectComputation) {
  set_random_seed(1);
  VariableStore store;
  const Cifar10Network network(store);
  // Scales the softmax weights and the pixels up, so that LRN and the signs of sums affect the
  // logits measurably.
  Variable(store.variables()[8]).assign(store.variables()[8].value() * 40.0f);
  const Tensor images = standardised_images(2, 7) * 3.0f;
  Tower tower("tower_0");
  const Tensor logits = network.inference(tower, images);
  EXPECT_EQ(logits.shape(), (Shape{2, 10}));
  testing::expect_tensor(logits, {2, 10}, expected_logits(store.variables(), images).to_doubles(),
                         1e-4);
  // float16 agrees within its precision of three digits.
  Tower half("tower_0");
  const Tensor rounded = network.inference(half, images, /*use_fp16=*/true);
  EXPECT_EQ(rounded.dtype(), DType::kFloat32);
  testing::expect_tensor(rounded, {2, 10}, logits.to_doubles(), 2e-2);
}

TEST(Cifar10Network, WeightDecayAddsRateTimesWeightToGradient) {
  const Variable w(Tensor::from<float>({3}, {1.0f, -2.0f, 0.5f}), {.name = "w"});
  GradientTape tape;
  const Tensor loss = weight_decay_loss(w.value(), 0.004);
  EXPECT_FLOAT_EQ(loss.item(), 0.002f * 5.25f);
  testing::expect_tensor(tape.gradient(loss, w).dense(), {3}, {0.004, -0.008, 0.002}, 1e-7);
}

TEST(Cifar10Network, TowerLossIsCrossEntropyPlusDecayTerms) {
  set_random_seed(3);
  VariableStore store;
  const Cifar10Network first(store);
  store.reuse_variables();
  const Cifar10Network second(store);
  const Cifar10Network* networks[] = {&first, &second};
  double weights3 = 0.0, weights4 = 0.0;
  for (const double w : store.variables()[4].value().to_doubles()) weights3 += w * w;
  for (const double w : store.variables()[6].value().to_doubles()) weights4 += w * w;
  for (int t = 0; t < 2; ++t) {
    const std::string prefix = concat("tower_", t, "/");
    Tower tower(concat("tower_", t));
    const Tensor logits = networks[t]->inference(tower, standardised_images(4, 9));
    const double total = Cifar10Network::loss(tower, logits, labels_of(4)).item();
    std::vector<std::string> names;
    double sum = 0.0;
    for (const NamedTensor& loss : tower.losses()) {
      names.push_back(loss.name);
      sum += loss.value.item();
    }
    EXPECT_EQ(names, (std::vector<std::string>{
                         prefix + "conv1/weight_loss", prefix + "conv2/weight_loss",
                         prefix + "local3/weight_loss", prefix + "local4/weight_loss",
                         prefix + "softmax_linear/weight_loss", prefix + "cross_entropy"}));
    EXPECT_EQ(tower.losses()[0].value.item(), 0.0f);  // a weight loss of 0 is still a separate term
    EXPECT_NEAR(tower.losses()[2].value.item(), 0.002 * weights3, 1e-4);
    EXPECT_NEAR(tower.losses()[3].value.item(), 0.002 * weights4, 1e-5);
    EXPECT_NEAR(total, sum, 1e-5);
    EXPECT_NEAR(total, 4.676, 0.05);  // the weight losses of the other tower are not added
  }
}

/// Returns `count` images whose pixel (x, y) of colour c is value(image, y, x, c). Labels are 0, 1,
/// ..., 9, 0, ...
template <class Value>
ImageData pictures(std::int64_t count, const Value& value) {
  MutableTensor images({count, 32, 32, 3}, DType::kUInt8, Device{});
  MutableTensor labels({count}, DType::kUInt8, Device{});
  std::uint8_t* next = images.span<std::uint8_t>().data();
  for (std::int64_t i = 0; i < count; ++i) {
    labels.span<std::uint8_t>()[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i % 10);
    for (std::int64_t y = 0; y < 32; ++y) {
      for (std::int64_t x = 0; x < 32; ++x) {
        for (std::int64_t c = 0; c < 3; ++c) *next++ = static_cast<std::uint8_t>(value(i, y, x, c));
      }
    }
  }
  return {images.freeze(), labels.freeze()};
}

/// Returns the first `count` distorted images, each of shape [24, 24, 3].
std::vector<Tensor> distorted(const ImageData& data, std::int64_t count, std::uint64_t seed = 1,
                              int threads = 1) {
  std::vector<Tensor> images;
  for (const Element& batch :
       distorted_inputs(data, {.batch_size = 8, .seed = seed, .num_threads = threads})) {
    for (std::int64_t i = 0; i < 8; ++i) {
      images.push_back(batch[0].detached_rows(i, 1).detached_reshape({24, 24, 3}));
      if (static_cast<std::int64_t>(images.size()) == count) return images;
    }
  }
  return images;
}

float at(const Tensor& image, std::int64_t y, std::int64_t x, std::int64_t c) {
  return image.host_span<float>()[static_cast<std::size_t>((y * 24 + x) * 3 + c)];
}

TEST(Cifar10Network, LearningRateDecaysAfter136718StepsAtBatchSize128) {
  EXPECT_EQ(decay_steps(128), 136'718);
  EXPECT_EQ(decay_steps(50'000), 350);
  // the number of steps per epoch is not rounded before the multiplication
  EXPECT_EQ(decay_steps(3), 5'833'333);
}

TEST(Cifar10Network, LearningRateDecaysTenfoldPerPeriod) {
  const ExponentialDecay rate = learning_rate_schedule(128);
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(136'717), 0.1);
  EXPECT_DOUBLE_EQ(rate(136'718), 0.01);
  EXPECT_DOUBLE_EQ(rate(273'436), 0.001);
  const ExponentialDecay smooth(
      {.initial_learning_rate = 0.1, .decay_steps = 136'718, .decay_rate = 0.1});
  EXPECT_NEAR(smooth(68'359), 0.1 * std::sqrt(0.1), 1e-12);
}

// A bright pixel at (16, 16) and a darker pixel to its right show where the crop is (0 .. 8 on each
// axis) and whether the image is mirrored. Standardisation keeps the order of values.
TEST(Cifar10Input, CropsAreUniformAndHalfAreMirrored) {
  const ImageData data = pictures(8, [](auto, auto y, auto x, auto) {
    if (y == 16 && x == 16) return 250;
    return y == 16 && x == 17 ? 200 : 20;
  });
  std::array<int, 9> rows{}, columns{};
  int mirrored = 0;
  constexpr int kCount = 4000;
  for (const Tensor& image : distorted(data, kCount)) {
    std::int64_t brightest = 0;
    for (std::int64_t pixel = 1; pixel < 24 * 24; ++pixel) {
      const auto values = image.host_span<float>();
      if (values[static_cast<std::size_t>(3 * pixel)] >
          values[static_cast<std::size_t>(3 * brightest)])
        brightest = pixel;
    }
    const std::int64_t y = brightest / 24, x = brightest % 24;
    const bool is_mirrored = at(image, y, x - 1, 0) > at(image, y, x + 1, 0);
    mirrored += is_mirrored ? 1 : 0;
    ++rows.at(static_cast<std::size_t>(16 - y));
    ++columns.at(static_cast<std::size_t>(16 - (is_mirrored ? 23 - x : x)));
  }
  // The tolerance is five standard deviations of a binomial count.
  const double of_nine = 5.0 * std::sqrt(kCount * (1.0 / 9.0) * (8.0 / 9.0));
  for (std::size_t offset = 0; offset <= 8; ++offset) {
    EXPECT_NEAR(rows[offset], kCount / 9.0, of_nine) << offset;
    EXPECT_NEAR(columns[offset], kCount / 9.0, of_nine) << offset;
  }
  EXPECT_NEAR(mirrored, kCount * 0.5, 5.0 * std::sqrt(kCount * 0.25));
}

// Changing the contrast multiplies differences within a colour by a factor, but not the distance
// between the means of two colours. So the ratio of difference to distance gives the factor;
// standardisation preserves this ratio. (Standardisation removes brightness, which
// tests/data/augment_test.cc tests.)
TEST(Cifar10Input, ContrastFactorsAreUniformInTutorialRange) {
  const ImageData data = pictures(
      8, [](auto, auto y, auto, auto c) { return (c == 0 ? 150 : 90) + (y % 2 == 0 ? 10 : -10); });
  constexpr int kCount = 2000;
  double sum = 0.0, lowest = 10.0, highest = 0.0;
  for (const Tensor& image : distorted(data, kCount)) {
    const double within = std::abs(at(image, 0, 0, 1) - at(image, 1, 0, 1)) / 20.0;
    double between = 0.0;  // distance between two colours, averaged over two rows
    for (std::int64_t y = 0; y < 2; ++y) between += (at(image, y, 0, 0) - at(image, y, 0, 1)) / 2.0;
    const double factor = within / (between / 60.0);
    sum += factor;
    lowest = std::min(lowest, factor);
    highest = std::max(highest, factor);
  }
  EXPECT_GE(lowest, 0.2 - 1e-4);
  EXPECT_LT(lowest, 0.21);
  EXPECT_LT(highest, 1.8 + 1e-4);
  EXPECT_GT(highest, 1.79);
  EXPECT_NEAR(sum / kCount, 1.0, 5.0 * (1.6 / std::sqrt(12.0)) / std::sqrt(kCount));
}

TEST(Cifar10Input, QueueSizeMatchesTutorial) { EXPECT_EQ(queue_size(128), 20'384); }

TEST(StepLog, LineHasPublishedFormat) {
  std::tm parts{};
  parts.tm_year = 2019 - 1900;
  parts.tm_mon = 1;
  parts.tm_mday = 20;
  parts.tm_hour = 10;
  parts.tm_min = 10;
  parts.tm_sec = 28;
  parts.tm_isdst = -1;
  const double seconds = static_cast<double>(std::mktime(&parts)) + 0.4504612;
  EXPECT_EQ(step_line(seconds, 1260, 2.1693, step_speed(0.8454, 128, 1)),
            "2019-02-20 10:10:28.450461: step 1260, loss = 2.17 (151.4 examples/sec; "
            "0.845 sec/batch)");
}

TEST(SpeedReport, ComparesMeanOfMeasuredStepsWithPublishedSpeed) {
  // The first ten steps include initialisation, so they are not measured.
  std::vector<double> seconds(10, 9.0);
  seconds.insert(seconds.end(), {0.8, 0.9, 0.8, 0.9});
  const SpeedReport one = speed_report(seconds, 10, 128, 1);
  EXPECT_EQ(one.num_steps, 4);
  EXPECT_NEAR(one.speed.examples_per_second, 128.0 / 0.85, 1e-9);
  EXPECT_NEAR(one.speed.seconds_per_batch, 0.85, 1e-12);
  EXPECT_NEAR(one.times_published(), 128.0 / 0.85 / 155.7, 1e-12);
  EXPECT_EQ(to_string(one),
            "150.6 examples/sec (0.850 sec/batch) in 4 steps; published: 151.4 to 155.7 "
            "examples/sec; 0.97 times as fast");
  const SpeedReport two = speed_report(std::vector<double>{0.1}, 0, 128, 2);
  EXPECT_NEAR(two.speed.examples_per_second, 2560.0, 1e-9);
  EXPECT_NEAR(two.speed.seconds_per_batch, 0.05, 1e-12);
  EXPECT_GT(two.times_published(), 16.4);
  EXPECT_ERROR(speed_report(std::vector<double>(10, 1.0), 10, 128, 1), kInvalidArgument,
               "speed_report", "10", "--steps");
}

int parse(std::vector<std::string> words, bool with_towers, TrainFlags& flags) {
  words.insert(words.begin(), "program");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return parse_train_flags(static_cast<int>(arguments.size()), arguments.data(), with_towers,
                           flags);
}

TEST(TrainFlags, NamesAndDefaultsMatchTutorial) {
  TrainFlags flags;
  ASSERT_EQ(parse({}, true, flags), -1);
  EXPECT_EQ(flags.batch_size, 128);
  EXPECT_EQ(flags.num_gpus, 1);
  EXPECT_EQ(flags.max_steps, 1'000'000);
  EXPECT_EQ(flags.log_frequency, 10);
  EXPECT_EQ(flags.data_dir, "/tmp/cifar10_data");
  EXPECT_FALSE(flags.use_fp16);
  EXPECT_FALSE(flags.log_device_placement);
  ASSERT_EQ(parse({"--num_gpus=2", "--batch_size", "64", "--max_steps=50", "--train_dir=runs/t",
                   "--data_dir=data/d", "--log_device_placement=True", "--use_fp16=true",
                   "--log_frequency=5", "--devices=cpu:0-1"},
                  true, flags),
            -1);
  EXPECT_EQ(flags.num_gpus, 2);
  EXPECT_EQ(flags.batch_size, 64);
  EXPECT_EQ(flags.max_steps, 50);
  EXPECT_EQ(flags.train_dir, "runs/t");
  EXPECT_EQ(flags.data_dir, "data/d");
  EXPECT_EQ(flags.log_frequency, 5);
  EXPECT_TRUE(flags.log_device_placement);
  EXPECT_TRUE(flags.use_fp16);
}

ArchiveIdentity identity_of_text(const std::string& text) {
  std::istringstream in(text);
  return identity_of(in);
}

// Vectors from RFC 1321, appendix A.5, and texts whose length is close to the block size.
TEST(Md5, MatchesRfc1321Vectors) {
  std::string digits;
  for (int i = 0; i < 8; ++i) digits += "1234567890";
  const std::pair<std::string, const char*> vectors[] = {
      {"", "d41d8cd98f00b204e9800998ecf8427e"},
      {"a", "0cc175b9c0f1b6a831c399e269772661"},
      {"abc", "900150983cd24fb0d6963f7d28e17f72"},
      {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
      {digits, "57edf4a22be3c955ac49da2e2107b67a"},
      {std::string(55, 'a'), "ef1772b6dff9a122358552954ad0df65"},
      {std::string(56, 'a'), "3b0c8ac703f828b04c6c197006d17218"},
      {std::string(64, 'a'), "014842d480b571495a4a0363793f7367"},
  };
  for (const auto& [text, md5] : vectors) {
    const ArchiveIdentity found = identity_of_text(text);
    EXPECT_EQ(found.md5, md5);
    EXPECT_EQ(found.bytes, static_cast<std::int64_t>(text.size()));
  }
}

}  // namespace tutti::cifar10_network_test
