// Compares steps of sessions with the same steps in one process: every operation, optimizers,
// layers and checkpoints.
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>

#include "tests/support/hang_watchdog.h"
#include "tests/support/multi_process_runner.h"
#include "tests/support/op_table.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/parameter_server.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tutti.h"

namespace tutti::session_steps_tests {

using testing::MultiProcessRunner;
using testing::OpBackend;
using testing::OpFamily;

TUTTI_PROCESS_FUNCTION(serve_steps) {
  const auto resolver = resolver_from_environment();
  const launch::Task self = testing::this_process();
  Server server(resolver->cluster_spec(), self.type, self.index);
  std::cout << "serving" << std::endl;
  server.join();
  return Json("served");
}

/// Cluster of two parameter servers and one worker; all tests share its processes.
class Cluster {
 public:
  static const Cluster& get() {
    static Cluster cluster;
    return cluster;
  }
  std::string target() const { return concat("grpc://", runner_.address("worker", 0)); }

 private:
  Cluster() : runner_("serve_steps", {.num_workers = 1, .num_ps = 2}) {
    runner_.start();
    for (const auto& [job, index] : {std::pair("worker", 0), {"ps", 0}, {"ps", 1}}) {
      runner_.wait_for_line(job, index, "serving");
    }
    keeps_open_ = std::make_unique<Session>(target());  // servers exit when the last session ends
  }
  ~Cluster() = default;
  MultiProcessRunner runner_;
  std::unique_ptr<Session> keeps_open_;
};

bool session_has(OpId op, DType dtype) { return testing::reference_has(op, dtype); }

/// Runs all calls of a family as one step on the worker, and returns their outputs.
std::vector<std::vector<Tensor>> run_in_session(std::span<const OpCall> calls) {
  const Session session(Cluster::get().target());
  return session.run([&] {
    const DeviceScope worker("/job:worker/task:0");
    std::vector<std::vector<Tensor>> recorded;
    for (const OpCall& call : calls) recorded.push_back(dispatch(call));
    return recorded;
  });
}

const OpBackend kSession{"session", session_has, run_in_session};

class SessionOperations : public testing::OpTableTest {
  const testing::HangWatchdog watchdog_{"operations of a session", std::chrono::seconds(300)};
};

TEST_P(SessionOperations, MatchReference) { expect_agreement(kSession, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, SessionOperations, ::testing::ValuesIn(testing::op_families()),
                         testing::family_name);

class SessionSteps : public ::testing::Test {
  const testing::HangWatchdog watchdog_{"a session", std::chrono::seconds(300)};
};

/// Tasks that hold a program's variables and compute its layers. An empty name means this process.
struct Places {
  std::string variables, layers;
};
const Places kHere;
const Places kOnTasks{"/job:ps", "/job:worker/task:0"};

std::string on(const Places& places, int ps) {
  return places.variables.empty() ? "" : concat(places.variables, "/task:", ps);
}

struct Trained {
  std::vector<Tensor> losses, values;
};

void expect_same_bits(const Trained& got, const Trained& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  ASSERT_EQ(got.values.size(), expected.values.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    SCOPED_TRACE(concat("loss ", i));
    testing::expect_same_bits(got.losses[i], expected.losses[i]);
  }
  for (std::size_t i = 0; i < got.values.size(); ++i) {
    SCOPED_TRACE(concat("value ", i));
    testing::expect_same_bits(got.values[i], expected.values[i]);
  }
}

/// Session and its scope, for programs whose variables are on tasks; without a session, steps run
/// in this process.
class OwnSession {
 public:
  explicit OwnSession(const Places& places) {
    if (places.variables.empty()) return;
    session_.emplace(Cluster::get().target());
    scope_.emplace(*session_);
  }
  template <class Step>
  Tensor run(const Step& step) const {
    return session_ ? session_->run(step) : step();
  }

 private:
  std::optional<Session> session_;
  std::optional<SessionScope> scope_;
};

/// Trains a network with dropout, batch normalization, and an embedding, whose gradient is sparse.
Trained train_network(const Places& places, const OptimizerSpec& spec, int steps) {
  set_random_seed(11);
  const OwnSession session(places);
  const auto variable = [&](int ps, const char* name, const Shape& shape, std::uint64_t number) {
    const Tensor initial = random_normal(shape, RandomKey{5, kUserPurpose, number, 0, 0}) * 0.3f;
    const DeviceScope task(on(places, ps));
    // Each call uses new names, because servers keep variables by name.
    static int count = 0;
    return Variable(initial, {.name = concat(name, "_", count++)});
  };
  const std::vector<Variable> variables = {
      variable(0, "embedding", {20, 6}, 1), variable(1, "kernel", {6, 8}, 2),
      variable(0, "gamma", {8}, 3), variable(1, "beta", {8}, 4), variable(0, "output", {8, 3}, 5)};
  const auto optimizer = make_optimizer(spec, variables);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::int64_t> ids, labels;
    for (int i = 0; i < 10; ++i) {
      ids.push_back((7 * i + 3 * step) % 20);
      labels.push_back((i + step) % 3);
    }
    const Tensor indices = Tensor::from<std::int64_t>({10}, ids);
    const Tensor classes = Tensor::from<std::int64_t>({10}, labels);
    const RandomContextScope random({11, static_cast<std::uint64_t>(step), 0});
    trained.losses.push_back(session.run([&] {
      const DeviceScope worker(places.layers);
      GradientTape tape;
      const Tensor rows = embedding_lookup(variables[0], indices);
      const auto [y, mean, variance] = batch_norm_training(
          matmul(rows, variables[1]), variables[2].value(), variables[3].value(), 1e-3);
      const Tensor kept = dropout(relu(y), 0.25, next_random_key());
      const Tensor loss =
          reduce_mean(sparse_softmax_cross_entropy(classes, matmul(kept, variables[4])));
      optimizer->minimize(tape, loss);
      return loss;
    }));
  }
  for (const Variable& each : variables) trained.values.push_back(each.value());
  for (const Variable& each : optimizer->state_variables()) {
    trained.values.push_back(each.value());
  }
  return trained;
}

struct NamedOptimizer {
  std::string name;
  OptimizerSpec spec;
};

std::vector<NamedOptimizer> optimizers() {
  std::vector<NamedOptimizer> all;
  for (const std::string& name : optimizer_names()) all.push_back({name, name});
  const CosineDecay decay({.initial_learning_rate = 0.1, .decay_steps = 4});
  all.push_back({"nesterov", SgdOptions{.momentum = 0.9, .nesterov = true}});
  all.push_back({"amsgrad", AdamOptions{.amsgrad = true}});
  all.push_back({"decay", SgdOptions{.learning_rate = decay, .weight_decay = 0.01}});
  all.push_back({"ema", SgdOptions{.ema = EmaOptions{.momentum = 0.5}}});
  all.push_back({"clipvalue", SgdOptions{.clipping = {.clipvalue = 0.01}}});
  all.push_back({"accumulation", SgdOptions{.gradient_accumulation_steps = 2}});
  return all;
}

class SessionOptimizers : public ::testing::TestWithParam<NamedOptimizer> {};

TEST_P(SessionOptimizers, MatchOneProcessBitForBit) {
  const testing::HangWatchdog watchdog("a session", std::chrono::seconds(300));
  const Trained here = train_network(kHere, GetParam().spec, 4);
  expect_same_bits(train_network(kOnTasks, GetParam().spec, 4), here);
  EXPECT_NE(here.losses.front().item(), here.losses.back().item());
}

INSTANTIATE_TEST_SUITE_P(All, SessionOptimizers, ::testing::ValuesIn(optimizers()),
                         [](const auto& optimizer) { return optimizer.param.name; });

/// The task computes norms as sums of products, in a different order than the host.
TEST_F(SessionSteps, ClippingByNormMatchesOneProcess) {
  const SgdOptions sgd{.learning_rate = 0.1, .clipping = {.global_clipnorm = 0.01}};
  const Trained here = train_network(kHere, sgd, 3), there = train_network(kOnTasks, sgd, 3);
  for (std::size_t i = 0; i < here.losses.size(); ++i) {
    EXPECT_NEAR(there.losses[i].item(), here.losses[i].item(), 1e-5);
  }
}

/// Random keys are arguments of the program. The first step sends the program; later steps send
/// inputs and the program's number, and fetch the loss.
TEST_F(SessionSteps, LaterStepsSendOnlyInputs) {
  const Session session(Cluster::get().target());
  const auto scope = session.scope();
  const auto variable = [&](int ps, const char* name, const Shape& shape) {
    const Tensor initial = Tensor::full(shape, 0.01);
    const DeviceScope task(on(kOnTasks, ps));
    return Variable(initial, {.name = name});
  };
  const std::vector<Variable> w = {variable(0, "sent_w", {300, 200}),
                                   variable(1, "sent_v", {200, 5})};
  Adam optimizer(w, {.learning_rate = 0.01});
  const auto client_bytes = [&] {
    std::uint64_t bytes = 0;
    for (const SessionTransfer& each : session.transfers()) {
      if (each.from == "client" || each.to == "client") bytes += each.bytes;
    }
    return bytes;
  };
  std::vector<std::uint64_t> bytes = {client_bytes()};
  for (int step = 0; step < 4; ++step) {
    const Tensor x = Tensor::full({4, 300}, step);
    const RandomContextScope random({11, static_cast<std::uint64_t>(step), 0});
    const Tensor loss = session.run([&] {
      const DeviceScope worker("/job:worker");
      GradientTape tape;
      const Tensor hidden = dropout(tanh(matmul(x, w[0])), 0.5, next_random_key());
      const Tensor mean = reduce_mean(square(matmul(hidden, w[1]) - 1.0f));
      optimizer.minimize(tape, mean);
      return mean;
    });
    (void)loss.item();
    bytes.push_back(client_bytes());
  }
  // A step transfers x, the loss, a key of 5 words, the scalars of the update for each of two
  // servers, and the numbers that identify the program and the gradients.
  const std::uint64_t inputs = 4 * 300 * 4, key = 5 * 8, scalars = 2 * 4 * 8;
  for (std::size_t i = 2; i + 1 < bytes.size(); ++i) {
    EXPECT_LE(bytes[i + 1] - bytes[i], inputs + key + scalars + 16 * sizeof(float)) << i;
    EXPECT_GE(bytes[i + 1] - bytes[i], inputs + key + scalars + sizeof(float)) << i;
  }
  EXPECT_GT(bytes[1] - bytes[0], bytes[2] - bytes[1]);
}

/// Layers whose variables are on ps tasks compute on the worker. The worker also computes batch
/// statistics, which are stored with the weights.
TEST_F(SessionSteps, LayerTrainingMatchesOneProcess) {
  const auto train = [](const Places& places) {
    set_random_seed(3);
    const OwnSession session(places);
    std::unique_ptr<Sequential> model;
    {
      const DeviceScope ps(on(places, 1));
      model = std::make_unique<Sequential>(Input{{6}}, Dense(12, "relu"), BatchNormalization(),
                                           Dropout(0.3), Dense(3));
    }
    Sgd optimizer(model->trainable_variables(), {.learning_rate = 0.1, .momentum = 0.9});
    Trained trained;
    for (int step = 0; step < 4; ++step) {
      const Tensor x = random_normal({8, 6}, RandomKey{5, kUserPurpose, 7, 0, 0});
      const Tensor labels = Tensor::from<std::int64_t>({8}, {0, 1, 2, 0, 1, 2, 0, 1});
      const RandomContextScope random({3, static_cast<std::uint64_t>(step), 0});
      trained.losses.push_back(session.run([&] {
        const DeviceScope worker(places.layers);
        GradientTape tape;
        const Tensor loss = reduce_mean(
            losses::sparse_categorical_crossentropy(labels, (*model)(x, {.training = true})));
        optimizer.minimize(tape, loss);
        return loss;
      }));
    }
    for (const Variable& each : model->variables()) trained.values.push_back(each.value());
    const Tensor x = Tensor::ones({2, 6});
    trained.losses.push_back(session
                                 .run([&] {
                                   const DeviceScope worker(places.layers);
                                   return (*model)(x);
                                 })
                                 .copy());
    return trained;
  };
  expect_same_bits(train(kOnTasks), train(kHere));
}

TEST_F(SessionSteps, CheckpointsSaveAndRestoreRemoteVariables) {
  const std::string path = thrown::empty_folder() + "/weights";
  const auto variable = [](int ps, const char* name, const Tensor& initial) {
    const DeviceScope task(on(kOnTasks, ps));
    return Variable(initial, {.name = name});
  };
  const Session session(Cluster::get().target());
  const auto scope = session.scope();
  Variable v = variable(0, "saved_v", Tensor::full({3}, 2.0));
  Variable w = variable(1, "saved_w", Tensor::full({2, 2}, 5.0));
  w.scatter_add({Tensor::ones({1, 2}), Tensor::from<std::int64_t>({1}, {1}), {2, 2}});
  Checkpoint checkpoint({v, w});
  checkpoint.save(path);
  v.assign(0.0), w.assign(0.0);
  testing::expect_tensor(w.value(), {2, 2}, {0, 0, 0, 0});
  (void)checkpoint.restore(path);
  testing::expect_tensor(v.value(), {3}, {2, 2, 2});
  testing::expect_tensor(w.value(), {2, 2}, {5, 5, 6, 6});
}

}  // namespace tutti::session_steps_tests
