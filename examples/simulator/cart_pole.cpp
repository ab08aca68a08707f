// A cart-pole in C++ that plays through an ActorQ actor, with gRPC's C++ library and ActorQ's protos.
//
//   cart_pole [ADDRESS [ENVIRONMENTS]]
//
// In a pod, ACTOR_ADDRESS has the address, and ACTOR_CERTIFICATES the folder of the certificates.

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "actorq/v1/external.grpc.pb.h"

namespace v1 = actorq::v1;

// The classic task: push a cart left or right, so that the pole on it stays upright. 500 steps at most.
class CartPole {
 public:
  explicit CartPole(std::mt19937& random) : random_(&random) { Reset(); }

  // Pushes, or begins the next episode if the last one has ended.
  void Step(int64_t action) {
    if (failed || cut) return Reset();
    const double sine = std::sin(state[2]), cosine = std::cos(state[2]);
    const double push = ((action ? 10.0 : -10.0) + 0.05 * state[3] * state[3] * sine) / 1.1;
    const double turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    const double pull = push - 0.05 * turn * cosine / 1.1;
    const double changes[4] = {state[1], pull, state[3], turn};
    for (int i = 0; i < 4; ++i) state[i] += 0.02 * changes[i];
    reward = 1.0;
    failed = std::abs(state[0]) > 2.4 || std::abs(state[2]) > 12 * M_PI / 180;
    cut = ++steps_ == 500;
  }

  double state[4], reward;
  bool failed, cut;

 private:
  void Reset() {
    std::uniform_real_distribution<double> small(-0.05, 0.05);
    for (double& value : state) value = small(*random_);
    steps_ = 0;
    reward = 0.0;
    failed = cut = false;
  }

  std::mt19937* random_;
  int steps_ = 0;
};

v1::PlayRequest Opening(int count) {
  v1::PlayRequest request;
  v1::PlayOpen* open = request.mutable_open();
  open->set_protocol(1);
  open->set_environments(count);
  open->set_max_episode_steps(500);
  open->set_reward_threshold(475.0);
  v1::Leaf* numbers = open->add_observations();
  numbers->set_kind(v1::LEAF_KIND_NUMBERS);
  numbers->mutable_spec()->set_dtype(v1::DATA_TYPE_FLOAT32);
  numbers->mutable_spec()->add_shape(4);
  open->mutable_actions()->set_dtype(v1::DATA_TYPE_INT64);
  open->add_sizes(2);
  return request;
}

// The step of all cart-poles. Tensors are little-endian, like the processors that this program is for.
v1::PlayRequest Message(const std::vector<CartPole>& poles) {
  v1::PlayRequest request;
  v1::PlayStep* step = request.mutable_step();
  v1::Tensor* tensor = step->add_observations();
  tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
  tensor->add_shape(poles.size());
  tensor->add_shape(4);
  std::vector<float> values;
  for (const CartPole& pole : poles) {
    values.insert(values.end(), pole.state, pole.state + 4);
    step->add_rewards(pole.reward);
    step->add_terminated(pole.failed);
    step->add_truncated(pole.cut);
  }
  tensor->set_data(values.data(), values.size() * sizeof(float));
  return request;
}

// Mutual TLS if there are certificates.
std::shared_ptr<grpc::ChannelCredentials> Credentials() {
  const char* folder = std::getenv("ACTOR_CERTIFICATES");
  if (!folder || !*folder) return grpc::InsecureChannelCredentials();
  auto read = [folder](const char* name) {
    std::ifstream file(std::string(folder) + "/" + name);
    if (!file && std::cerr << "error: cannot read " << folder << "/" << name << std::endl) std::exit(1);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  return grpc::SslCredentials({read("ca.crt"), read("tls.key"), read("tls.crt")});
}

// Plays until the stream ends, and returns how it ended.
grpc::Status Play(const std::string& address, int count, std::mt19937& random) {
  auto stub = v1::ExternalEnvironmentService::NewStub(grpc::CreateChannel(address, Credentials()));
  grpc::ClientContext context;
  auto stream = stub->Play(&context);
  std::vector<CartPole> poles;
  std::vector<int64_t> actions(count);
  for (int i = 0; i < count; ++i) poles.emplace_back(random);
  v1::PlayResponse answer;
  bool open = stream->Write(Opening(count));
  while (open && stream->Read(&answer)) {
    if (answer.has_action()) {
      std::memcpy(actions.data(), answer.action().actions().data().data(), count * sizeof(int64_t));
      for (int i = 0; i < count; ++i) poles[i].Step(actions[i]);
    }
    open = stream->Write(Message(poles));
  }
  // The actor has ended the stream. Read what it still sent, so that the status arrives.
  while (stream->Read(&answer)) {}
  return stream->Finish();
}

int main(int argc, char** argv) {
  // Without a handler, the first process of a container would ignore SIGTERM.
  std::signal(SIGTERM, [](int) { std::_Exit(0); });
  const char* given = std::getenv("ACTOR_ADDRESS");
  const std::string address = argc > 1 ? argv[1] : given ? given : "127.0.0.1:50053";
  const int count = argc > 2 ? std::stoi(argv[2]) : 8;
  std::mt19937 random(std::random_device{}());
  while (true) {
    const grpc::Status status = Play(address, count, random);
    if (status.ok()) {
      std::cout << "the run is over" << std::endl;
      return 0;
    }
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      std::cerr << "error: " << status.error_message() << std::endl;
      return 1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}
